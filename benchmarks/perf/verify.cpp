#include "perf/verify.h"

#include <algorithm>
#include <string_view>

#include "perf/memory.h"
#include "stable_hash.h"

namespace isthmus::perf {
namespace {

constexpr int kExactInteger = 256;  // bfloat16 has all whole numbers up to here

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

double checksum(Device& device, ConstBuffer buffer) {
  const std::vector<std::byte> bytes = bytes_of(device, buffer);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  constexpr int kSpareBits = 64 - 53;
  return static_cast<double>(StableHash().add(text).value() >> kSpareBits);
}

}  // namespace isthmus::perf
