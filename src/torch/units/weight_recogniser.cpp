#include "torch/units/weight_recogniser.h"

#include <utility>

#include "communicator/plan/policy.h"
#include "torch/base/tensors.h"
#include "torch/units/gradient_labels.h"

namespace isthmus::torch_backend {

std::optional<GatheredUnit> WeightRecogniser::recognise(const at::Tensor& output) {
  if (!is_active() || !weights_caller) {
    return std::nullopt;
  }
  const PushedUnit* told = told_unit();
  const auto [owner, own_name] = told != nullptr ? WeightsCaller{told->tag.owner, told->tag.name} : weights_caller();
  if (owner == 0) {
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
  key.name = told != nullptr ? own_name : numbered(own_name, owner);
  std::string& name = names_.try_emplace(owner, key.name).first->second;
  if (name != key.name) {
    earlier_names_.push_back(std::exchange(name, key.name));
  }
  return GatheredUnit{key, told != nullptr && told->in_halves};
}

std::string WeightRecogniser::numbered(const std::string& name, uint64_t owner) {
  std::map<uint64_t, int>& owners = owners_[name];
  return with_ordinal(name, owners.try_emplace(owner, static_cast<int>(owners.size())).first->second);
}

std::vector<std::string> WeightRecogniser::take_gone() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names = std::exchange(earlier_names_, {});
  for (const uint64_t owner : gone_.take()) {
    if (const auto found = names_.find(owner); found != names_.end()) {
      names.push_back(found->second);
      names_.erase(found);
    }
  }
  return names;
}

}  // namespace isthmus::torch_backend
