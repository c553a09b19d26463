#include "auto/agreement.h"

#include <algorithm>
#include <cstdint>

#include "communicator/scratch.h"

namespace isthmus {
namespace {

// All ranks combine the same numbers in the same order.
template <typename Combine>
void combine_over_tier(Transport* tier, Device& device, Lane lane, std::vector<double>& values,
                       const Combine& combine) {
  if (tier == nullptr || tier->size() == 1) {
    return;
  }
  Scratch memory(device);
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(double));
  const Buffer own = memory.take(bytes, DataType::kByte);
  const Buffer all = memory.take(bytes * tier->size(), DataType::kByte);
  std::vector<double> of_ranks(values.size() * static_cast<size_t>(tier->size()));
  device.write({values.data(), bytes, DataType::kByte}, own);
  tier->all_gather(own, all, device.lane(lane))->wait(device.lane(lane));
  device.read(all, {of_ranks.data(), all.num_elements, DataType::kByte});
  for (size_t i = 0; i < of_ranks.size(); ++i) {
    double& value = values[i % values.size()];
    value = i < values.size() ? of_ranks[i] : combine(value, of_ranks[i]);
  }
}

template <typename Combine>
void combine_over_tiers(const Tiers& tiers, Device& device, std::vector<double>& values, const Combine& combine) {
  combine_over_tier(tiers.inter.get(), device, Lane::kInter, values, combine);
  combine_over_tier(tiers.intra.get(), device, Lane::kIntra, values, combine);
}

}  // namespace

void max_over_tiers(const Tiers& tiers, Device& device, std::vector<double>& values) {
  combine_over_tiers(tiers, device, values, [](double a, double b) { return std::max(a, b); });
}

void sum_over_tiers(const Tiers& tiers, Device& device, std::vector<double>& values) {
  combine_over_tiers(tiers, device, values, [](double a, double b) { return a + b; });
}

}  // namespace isthmus
