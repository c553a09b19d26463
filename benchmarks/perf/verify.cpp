#include "perf/verify.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "perf/memory.h"
#include "stable_hash.h"

namespace isthmus::perf {
namespace {

constexpr int kExactInteger = 256;  // bfloat16 has all whole numbers up to here

double unit_roundoff(DataType dtype) {
  return dtype == DataType::kBFloat16 ? 0x1p-8 : dtype == DataType::kFloat16 ? 0x1p-11 : 0x1p-24;
}

// Over the chunk of `rank`: of what other nodes send, and of the sum.
struct Energy {
  double crossing = 0;
  double sum = 0;
};
Energy energy_of(const NodeMap& map, int rank, int64_t chunk_elements) {
  Energy energy;
  for (int64_t i = rank * chunk_elements; i < (rank + 1) * chunk_elements; ++i) {
    double sum = 0;
    for (int node = 0; node < map.num_nodes(); ++node) {
      double piece = 0;
      for (const int sender : map.node_ranks(node)) {
        piece += test_value(map.world_size(), sender, i);
      }
      sum += piece;
      energy.crossing += node == map.node(rank) ? 0 : piece * piece;
    }
    energy.sum += sum * sum;
  }
  return energy;
}

}  // namespace

double test_value(int num_ranks, int rank, int64_t index) {
  const int largest = std::clamp(kExactInteger / (kVerifiedSteps * num_ranks), 1, 11);
  return static_cast<double>((7 * rank + 3 * index + index / 5) % (2 * largest + 1) - largest);
}

double test_sum(int num_ranks, int64_t index) {
  double sum = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    sum += test_value(num_ranks, rank, index);
  }
  return sum;
}

std::vector<double> held_back(Communicator& communicator, const Tiers& tiers, const UnitKey& unit,
                              int64_t chunk_elements) {
  std::vector<double> missing(static_cast<size_t>(chunk_elements), 0);
  const std::vector<UnitState> states = communicator.units().states();
  const auto state = std::find_if(states.begin(), states.end(), [&](const UnitState& one) { return one.key == unit; });
  const int64_t num_nodes = communicator.node_map().num_nodes();
  if (state == states.end() || state->residual.num_elements != (num_nodes - 1) * chunk_elements) {
    return missing;
  }
  // The residual has a piece for each other node; the own one is left out.
  Device& device = communicator.device();
  Memory sent(device, num_nodes * chunk_elements, DataType::kFloat32);
  Memory arrived(device, num_nodes * chunk_elements, DataType::kFloat32);
  for (int64_t node = 0, piece = 0; node < num_nodes; ++node) {
    if (node != tiers.inter->rank()) {
      const ConstBuffer owed = state->residual.part(piece++, chunk_elements);
      device.convert_scaled(owed, state->scale, sent.buffer().part(node, chunk_elements), {});
    }
  }
  tiers.inter->all_to_all(sent.buffer(), arrived.buffer(), {})->wait();
  for (int64_t node = 0; node < num_nodes; ++node) {
    if (node != tiers.inter->rank()) {
      const std::vector<double> owed = values_of(device, arrived.buffer().part(node, chunk_elements));
      std::transform(owed.begin(), owed.end(), missing.begin(), missing.begin(), std::plus<>());
    }
  }
  if (state->result_residual.num_elements == chunk_elements) {
    const std::vector<double> owed = values_of(device, state->result_residual);
    std::transform(owed.begin(), owed.end(), missing.begin(), missing.begin(), std::plus<>());
  }
  return missing;
}

int64_t count_unexpected(const std::vector<double>& errors, const NodeMap& map, int rank, double prior_error,
                         bool result_is_coded, DataType dtype) {
  constexpr double kMoreThanExpected = 2;
  constexpr double kFarOut = 8;
  const auto num_elements = static_cast<int64_t>(errors.size());
  const Energy energy = energy_of(map, rank, num_elements);
  const double rounding = unit_roundoff(dtype) * unit_roundoff(dtype) * energy.sum;
  const double coding = prior_error * (energy.crossing + (result_is_coded ? energy.sum : 0));
  const double expected = coding + rounding;
  const double found = std::inner_product(errors.begin(), errors.end(), errors.begin(), 0.0);
  if (found > kMoreThanExpected * expected) {
    return num_elements;
  }
  const double most = kFarOut * kFarOut * expected / static_cast<double>(num_elements);
  return std::ranges::count_if(errors, [most](double error) { return error * error > most; });
}

double checksum(Device& device, ConstBuffer buffer) {
  const std::vector<std::byte> bytes = bytes_of(device, buffer);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  constexpr int kSpareBits = 64 - 53;
  return static_cast<double>(StableHash().add(text).value() >> kSpareBits);
}

}  // namespace isthmus::perf
