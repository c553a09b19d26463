#include "torch/units/weight_recogniser.h"

#include "communicator/plan/policy.h"
#include "torch/base/tensors.h"

namespace isthmus::torch_backend {

std::optional<GatheredUnit> WeightRecogniser::recognise(const at::Tensor& output) {
  if (!is_active() || !weights_caller) {
    return std::nullopt;
  }
  const WeightsCaller caller = weights_caller();
  if (caller.owner == 0) {
    return std::nullopt;
  }
  UnitKey key;
  key.num_elements = output.numel();
  key.collective = Collective::kAllGather;
  key.dtype = floating_dtype(output.scalar_type()).value_or(DataType::kByte);
  if (key.dtype == DataType::kByte) {
    key.num_elements = static_cast<int64_t>(output.nbytes());
  }
  const std::lock_guard lock(mutex_);
  std::map<uint64_t, int>& owners = owners_[caller.name];
  const int number = owners.try_emplace(caller.owner, static_cast<int>(owners.size())).first->second;
  key.name = with_ordinal(caller.name, number);
  names_[caller.owner] = key.name;
  return GatheredUnit{key, caller.in_halves};
}

std::vector<std::string> WeightRecogniser::take_gone() {
  std::vector<std::string> names;
  const std::lock_guard lock(mutex_);
  for (const uint64_t owner : gone_.take()) {
    if (const auto found = names_.find(owner); found != names_.end()) {
      names.push_back(found->second);
      names_.erase(found);
    }
  }
  return names;
}

}  // namespace isthmus::torch_backend
