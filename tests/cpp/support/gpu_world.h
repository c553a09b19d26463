// A communicator for every rank, each on an emulated GPU of its own, and calls that run there and on the CPU alike.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "tests/cpp/emulated/emulated_gpu.h"
#include "tests/cpp/emulated/emulated_transport.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {

struct GpuSettings {
  uint32_t seed = 1;
  Sums sums = Sums::kAccumulated;
  milliseconds timeout = kTimeout;
  Wrap wrap = {};            // of the tiers that the streams use
  bool gather_tiers = true;  // whether gathers have tiers of their own
};

class GpuWorld {
 public:
  struct Rank {
    std::shared_ptr<EmulatedGpu> gpu;
    Stream stream;  // of the caller
    Stream other_stream;
    std::shared_ptr<EmulatedTransport> intra;
    std::shared_ptr<EmulatedTransport> gather_intra;
    Tiers tiers;  // all of them: work that is under way outlives the communicator
    std::unique_ptr<KeyedCommunicator> communicator;
  };

  GpuWorld(const NodeMap& node_map, const Options& options, const GpuSettings& settings = {})
      : map(node_map), hub(map, settings.timeout), gather_hub(map, settings.timeout) {
    for (int r = 0; r < map.world_size(); ++r) {
      Tiers on_streams = hub.tiers(map, r);
      const Tiers gathers = gather_hub.tiers(map, r);
      on_streams.gather_intra = gathers.intra;
      on_streams.gather_inter = gathers.inter;
      if (settings.wrap) {
        on_streams = settings.wrap(r, on_streams);
      }
      Rank& rank = ranks.emplace_back();
      rank.gpu = std::make_shared<EmulatedGpu>(settings.seed + 1000 * static_cast<uint32_t>(r));
      rank.stream = rank.gpu->make_stream();
      rank.other_stream = rank.gpu->make_stream();
      const auto enqueued = [&](const std::shared_ptr<Transport>& tier, bool between_nodes) {
        return std::make_shared<EmulatedTransport>(rank.gpu, tier, between_nodes, settings.sums);
      };
      Tiers tiers = {.intra = rank.intra = enqueued(on_streams.intra, false),
                     .inter = enqueued(on_streams.inter, true),
                     .flat = options.tiers == TierMode::kFlat ? enqueued(on_streams.flat, true) : nullptr};
      if (settings.gather_tiers) {
        tiers.gather_intra = rank.gather_intra = enqueued(on_streams.gather_intra, false);
        tiers.gather_inter = enqueued(on_streams.gather_inter, true);
      }
      rank.tiers = tiers;
      rank.communicator = std::make_unique<KeyedCommunicator>(map, r, tiers, options, rank.gpu);
    }
  }
  // Work that is under way uses the tiers.
  ~GpuWorld() {
    for (const Rank& rank : ranks) {
      rank.gpu->synchronize();
    }
  }
  GpuWorld(const GpuWorld&) = delete;
  GpuWorld& operator=(const GpuWorld&) = delete;

  int size() const { return map.world_size(); }

  NodeMap map;
  InProcessHub hub;
  InProcessHub gather_hub;
  std::vector<Rank> ranks;
};

// One collective, and what each rank puts in.
struct Call {
  Collective collective = Collective::kReduceScatter;
  int64_t num_elements = 0;  // of the input of a reduction, or of what a gather puts out
  DataType dtype = DataType::kFloat32;
  double scale = 1;
  std::string unit = "unit";
  std::optional<Reason> why_exact = {};
  uint64_t seed = 1;

  bool gathers() const { return collective == Collective::kAllGather; }
  UnitKey key() const { return {unit, num_elements, dtype, collective}; }
  int64_t input_elements(int world_size) const { return gathers() ? num_elements / world_size : num_elements; }
  int64_t output_elements(int world_size) const {
    return collective == Collective::kReduceScatter ? num_elements / world_size : num_elements;
  }
  Array input(int rank, int world_size) const {
    return {random_values(input_elements(world_size), seed * 1000 + static_cast<uint64_t>(rank)), dtype};
  }

  // `out` of an all-reduce is `in`. input_stream: of a reduction.
  EventPtr start(KeyedCommunicator& communicator, ConstBuffer in, Buffer out, Stream stream = {},
                 std::optional<Stream> input_stream = {}) const {
    switch (collective) {
      case Collective::kReduceScatter:
        return communicator.reduce_scatter(in, out, {key(), scale, why_exact, nullptr, input_stream}, stream);
      case Collective::kAllGather:
        return communicator.all_gather(in, out, stream);
      case Collective::kAllReduce:
        return communicator.all_reduce(out, {key(), scale, why_exact, nullptr, input_stream}, stream);
    }
    return nullptr;
  }
};

// What one rank got, by call.
using Results = std::vector<Array>;

// One rank's part, on the CPU.
inline Results run_on_cpu(KeyedCommunicator& communicator, const std::vector<Call>& calls, int rank) {
  const int world_size = communicator.node_map().world_size();
  Results results;
  for (const Call& call : calls) {
    Array in = call.input(rank, world_size);
    const bool in_place = call.collective == Collective::kAllReduce;
    Array out(call.output_elements(world_size), call.dtype);
    call.start(communicator, in.view(), in_place ? in.buffer() : out.buffer());
    results.push_back(in_place ? in : out);
  }
  return results;
}

// A call on a GPU whose input is made, and whose output is used, on the caller's stream: around it that stream does
// what a training step does, and after it both buffers are written over. The input may be made on a stream of its own;
// what is reduced in place is then also read on the caller's stream before the call.
class CallOnGpu {
 public:
  CallOnGpu(EmulatedGpu& gpu, const Call& call, int rank, int world_size)
      : gpu_(gpu),
        call_(call),
        source_(gpu, call.input(rank, world_size).view()),
        in_(gpu, call.input_elements(world_size), call.dtype),
        out_(gpu, call.output_elements(world_size), call.dtype),
        result_(gpu, call.output_elements(world_size), call.dtype) {}

  void start(KeyedCommunicator& communicator, Stream stream, std::optional<Stream> input_stream = {}) {
    const bool in_place = call_.collective == Collective::kAllReduce;
    const Buffer in = in_place ? out_.buffer() : in_.buffer();
    if (!in_place) {
      gpu_.clear(out_.buffer(), stream);  // as whoever had this memory before may still use it
    }
    gpu_.convert(source_.buffer(), in, input_stream.value_or(stream));
    if (in_place && input_stream) {
      gpu_.order(*input_stream, stream);
      gpu_.convert(in, result_.buffer(), stream);
    }
    done_ = call_.start(communicator, in, out_.buffer(), stream, input_stream);
  }
  void finish(Stream stream) {
    gpu_.wait(done_, stream);
    gpu_.convert(out_.buffer(), result_.buffer(), stream);
    gpu_.clear(in_.buffer(), stream);
    gpu_.clear(out_.buffer(), stream);
  }
  void write(const Array& input) { source_.set(input.view()); }
  // Waits for the GPU.
  Array result() const { return result_.get(); }

 private:
  EmulatedGpu& gpu_;
  Call call_;
  DeviceArray source_;
  DeviceArray in_;
  DeviceArray out_;
  DeviceArray result_;
  EventPtr done_;
};

inline std::vector<CallOnGpu> prepare(GpuWorld& world, const std::vector<Call>& calls, int rank) {
  std::vector<CallOnGpu> prepared;
  for (const Call& call : calls) {
    prepared.emplace_back(*world.ranks[rank].gpu, call, rank, world.size());
  }
  return prepared;
}

// Before one call more than `in_flight` is started, the oldest is finished.
inline void run(const GpuWorld::Rank& rank, std::vector<CallOnGpu>& calls, size_t in_flight) {
  for (size_t i = 0; i < calls.size() + in_flight; ++i) {
    if (i >= in_flight) {
      calls[i - in_flight].finish(rank.stream);
    }
    if (i < calls.size()) {
      calls[i].start(*rank.communicator, rank.stream);
    }
  }
}

inline Results results_of(const std::vector<CallOnGpu>& calls) {
  Results results;
  for (const CallOnGpu& call : calls) {
    results.push_back(call.result());
  }
  return results;
}

// Equal bits, call by call.
inline void expect_results(const std::vector<CallOnGpu>& on_gpu, const std::vector<Call>& calls,
                           const Results& expected, int rank) {
  const Results results = results_of(on_gpu);
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_TRUE(results[i].bytes() == expected[i].bytes())
        << "rank " << rank << ", call " << i << ": " << to_string(calls[i].collective) << " of "
        << calls[i].num_elements << " elements of " << to_string(calls[i].dtype);
  }
}

// The same calls in the same order on both, which enqueue(rank, prepared) has each rank's GPU do: equal bits.
template <typename Enqueue>
void expect_enqueued_as_on_cpu(GpuWorld& world, World& cpu, const std::vector<Call>& calls, const Enqueue& enqueue) {
  run_ranks_well(world.size(), [&](int rank) {
    std::vector<CallOnGpu> prepared = prepare(world, calls, rank);
    enqueue(world.ranks[rank], prepared);
    expect_results(prepared, calls, run_on_cpu(*cpu.ranks[rank], calls, rank), rank);
  });
}
inline void expect_results_of_cpu(GpuWorld& world, World& cpu, const std::vector<Call>& calls, size_t in_flight) {
  expect_enqueued_as_on_cpu(world, cpu, calls, [&](const GpuWorld::Rank& rank, std::vector<CallOnGpu>& prepared) {
    run(rank, prepared, in_flight);
  });
}

}  // namespace isthmus::test
