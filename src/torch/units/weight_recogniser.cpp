#include "torch/units/weight_recogniser.h"

#include <utility>

#include "communicator/plan/policy.h"
#include "torch/backend/tensors.h"

namespace isthmus::torch_backend {
namespace {

std::function<WeightsCaller()>& caller_function() {
  static auto* function = new std::function<WeightsCaller()>;  // never destroyed: it holds a Python object
  return *function;
}

// Owners that are gone, in the order in which they went.
struct Gone {
  std::mutex mutex;
  std::vector<uint64_t> owners;
};
Gone& gone() {
  static auto* list = new Gone;  // never destroyed: Python's objects may go after it
  return *list;
}

}  // namespace

void set_weights_caller(std::function<WeightsCaller()> caller) { caller_function() = std::move(caller); }

void forget_weights_of(uint64_t owner) {
  const std::lock_guard lock(gone().mutex);
  gone().owners.push_back(owner);
}

std::optional<UnitKey> WeightRecogniser::recognise(const at::Tensor& output) {
  if (!is_active() || !caller_function()) {
    return std::nullopt;
  }
  const WeightsCaller caller = caller_function()();
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
  return key;
}

std::vector<std::string> WeightRecogniser::take_gone() {
  std::vector<std::string> names;
  const std::lock_guard lock(mutex_);
  const std::lock_guard gone_lock(gone().mutex);
  for (; gone_seen_ < gone().owners.size(); ++gone_seen_) {
    if (const auto found = names_.find(gone().owners[gone_seen_]); found != names_.end()) {
      names.push_back(found->second);
      names_.erase(found);
    }
  }
  return names;
}

}  // namespace isthmus::torch_backend
