#include "perf/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "isthmus/codec_type.h"
#include "isthmus/error.h"
#include "perf/memory.h"
#include "perf/verify.h"

namespace isthmus::perf {
namespace {

Collective collective_of(Operation operation) {
  switch (operation) {
    case Operation::kReduceScatter:
      return Collective::kReduceScatter;
    case Operation::kAllGather:
      return Collective::kAllGather;
    case Operation::kAllReduce:
      return Collective::kAllReduce;
  }
  return Collective::kReduceScatter;
}

double sum_of(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

int64_t left_node(const Stats& stats) {
  int64_t bytes = 0;
  for (const CollectiveStats& collective : stats.collectives) {
    bytes += collective.inter.inter_node_sent_bytes + collective.flat.inter_node_sent_bytes;
  }
  return bytes;
}

}  // namespace

double Result::bus_bandwidth(int num_ranks) const {
  const double steps = operation == Operation::kAllReduce ? 2 : 1;
  return algorithm_bandwidth() * steps * (num_ranks - 1) / num_ranks;
}

Bench::Bench(Rank& rank, const NodeMap& map, const Options& options, const Arguments& arguments)
    : rank_(rank),
      map_(map),
      tiers_(rank.tiers(map)),
      arguments_(arguments),
      communicator_(map, rank.rank(), tiers_, options, rank.device()) {}

Result Bench::run(Operation operation, DataType dtype, int64_t num_elements) {
  Result result;
  result.operation = operation;
  result.dtype = dtype;
  result.codec = operation == Operation::kAllGather ? "none" : communicator_.options().codec;
  result.tiers = communicator_.options().tiers;
  result.num_elements = num_elements;
  result.num_wrong = verify(operation, dtype, num_elements);

  Memory whole(device(), num_elements, dtype);
  Memory part(device(), num_elements / rank_.size(), dtype);
  whole.fill([&](int64_t index) { return test_value(rank_.size(), rank_.rank(), index); });
  const double scale = 1.0 / rank_.size();  // so that repeated all-reduces of one tensor stay finite
  EventPtr last;
  for (int i = 0; i < arguments_.num_warmups; ++i) {
    last = call(operation, whole.buffer(), part.buffer(), "timed", scale);
  }
  wait(last);
  communicator_.reset_stats();
  rank_.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < arguments_.num_iterations; ++i) {
    last = call(operation, whole.buffer(), part.buffer(), "timed", scale);
  }
  wait(last);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const std::vector<double> seconds = rank_.gather(elapsed.count());
  result.seconds = *std::max_element(seconds.begin(), seconds.end()) / arguments_.num_iterations;
  const auto sent = static_cast<double>(left_node(communicator_.stats()));
  result.node_bytes = sum_of(rank_.gather(sent)) / arguments_.num_iterations / map_.num_nodes();
  communicator_.units().clear();
  return result;
}

// One call after the other: on a GPU the next one's work begins when this one's is done.
EventPtr Bench::call(Operation operation, Buffer whole, Buffer part, const char* unit, double scale) {
  const EventPtr event = start(operation, whole, part, unit, scale);
  device().wait(event, {});
  return event;
}

EventPtr Bench::start(Operation operation, Buffer whole, Buffer part, const char* unit, double scale) {
  const UnitKey key{unit, whole.num_elements, whole.dtype, collective_of(operation)};
  switch (operation) {
    case Operation::kReduceScatter:
      return communicator_.reduce_scatter(whole, part, scale, key, nullptr);
    case Operation::kAllGather:
      return communicator_.all_gather(part, whole);
    case Operation::kAllReduce:
      return communicator_.all_reduce(whole, scale, key, nullptr);
  }
  return nullptr;
}

void Bench::wait(const EventPtr& event) {
  const auto deadline = std::chrono::steady_clock::now() + arguments_.timeout;
  while (event != nullptr && !device().done(event)) {
    if (std::chrono::steady_clock::now() > deadline) {
      communicator_.abort();
      throw TransportError(
          detail::concatenate("timed out after ", arguments_.timeout.count(), " ms: the GPU waits for other ranks"));
    }
    std::this_thread::yield();
  }
  communicator_.throw_if_faulted();
}

std::optional<int64_t> Bench::verify(Operation operation, DataType dtype, int64_t num_elements) {
  const Options& options = communicator_.options();
  const bool is_estimate = options.codec != "none" && options.tiers == "flat" && operation == Operation::kReduceScatter;
  if (!arguments_.verify || is_estimate) {
    return std::nullopt;
  }
  Memory whole(device(), num_elements, dtype);
  Memory part(device(), num_elements / rank_.size(), dtype);
  const int64_t num_wrong = operation == Operation::kAllGather ? count_wrong_in_gather(whole.buffer(), part)
                                                               : count_wrong_in_sum(operation, whole, part.buffer());
  return static_cast<int64_t>(sum_of(rank_.gather(static_cast<double>(num_wrong))));
}

int64_t Bench::count_wrong_in_gather(Buffer whole, Memory& part) {
  const int64_t chunk = part.buffer().num_elements;
  part.fill([&](int64_t index) { return test_value(rank_.size(), rank_.rank(), rank_.rank() * chunk + index); });
  wait(call(Operation::kAllGather, whole, part.buffer(), "verified", 1));
  const std::vector<double> values = values_of(device(), whole);
  int64_t num_wrong = 0;
  for (int64_t i = 0; i < whole.num_elements; ++i) {
    num_wrong += values[i] != test_value(rank_.size(), static_cast<int>(i / chunk), i) ? 1 : 0;
  }
  return num_wrong;
}

// Two steps, so that what was held back in the first comes in the second. What both delivered and what is still held
// back must make up twice the sum; without a residual, what is lacking must be what the codec is expected to lose.
int64_t Bench::count_wrong_in_sum(Operation operation, Memory& whole, Buffer part) {
  const int64_t chunk = part.num_elements;
  const int64_t own = rank_.rank() * chunk;
  std::vector<double> delivered(static_cast<size_t>(chunk), 0);
  int64_t num_wrong = 0;
  for (int step = 0; step < kVerifiedSteps; ++step) {
    whole.fill([&](int64_t index) { return test_value(rank_.size(), rank_.rank(), index); });
    wait(call(operation, whole.buffer(), part, "verified", 1));
    if (operation == Operation::kAllReduce) {
      const std::vector<double> checksums = rank_.gather(checksum(device(), whole.buffer()));
      num_wrong += checksums[rank_.rank()] != checksums.front() ? whole.buffer().num_elements : 0;
      device().convert(whole.buffer().slice(own, chunk), part, {});
    }
    const std::vector<double> values = values_of(device(), part);
    std::transform(values.begin(), values.end(), delivered.begin(), delivered.begin(), std::plus<>());
  }
  const UnitKey key{"verified", whole.buffer().num_elements, part.dtype, collective_of(operation)};
  const std::vector<double> missing = held_back(communicator_, tiers_, key, chunk);
  std::vector<double> errors;
  for (int64_t i = 0; i < chunk; ++i) {
    errors.push_back((delivered[i] + missing[i]) / kVerifiedSteps - test_sum(rank_.size(), own + i));
  }
  if (loses(part.dtype)) {
    const Options& options = communicator_.options();
    return num_wrong + count_unexpected(errors, map_, rank_.rank(), find_codec(options.codec).prior_error(options),
                                        operation == Operation::kAllReduce, part.dtype);
  }
  return num_wrong + std::ranges::count_if(errors, [](double error) { return error != 0; });
}

// Whether something of a gradient neither arrives nor waits in a residual.
bool Bench::loses(DataType dtype) {
  const Options& options = communicator_.options();
  const bool is_exact = options.codec == "none" || dtype == DataType::kFloat64 || map_.num_nodes() == 1;
  return !is_exact && !device().make_codec(options.codec, options, dtype, 1)->keeps_residual();
}

}  // namespace isthmus::perf
