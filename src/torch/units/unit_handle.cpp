#include "torch/units/unit_handle.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "torch/units/unit_registry.h"

namespace isthmus::torch_backend {

UnitHandle::UnitHandle(std::string name_, uint64_t layout_, std::optional<Reason> why_exact_, std::string parameters_,
                       std::shared_ptr<UnitRegistry> registry)
    : name(std::move(name_)),
      layout(layout_),
      why_exact(why_exact_),
      parameters(std::move(parameters_)),
      registry_(std::move(registry)) {}

int UnitHandle::num_ranks() const { return registry_->num_ranks(); }

UnitPtr UnitHandle::of_calls(const UnitKey& key, bool on_gpu) {
  const std::lock_guard lock(mutex_);
  std::vector<UnitPtr>& units = units_[on_gpu ? 1 : 0];
  const auto found = std::ranges::find(units, key, [](const UnitPtr& unit) -> const UnitKey& { return unit->key; });
  return found != units.end() ? *found : units.emplace_back(registry_->make_unit(key, why_exact));
}

std::vector<UnitPtr> UnitHandle::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<UnitPtr> units = units_[0];
  units.insert(units.end(), units_[1].begin(), units_[1].end());
  return units;
}

void UnitHandle::clear() {
  std::vector<UnitPtr> gone;  // freed without the lock
  const std::lock_guard lock(mutex_);
  for (std::vector<UnitPtr>& units : units_) {
    const auto reduces = [](const UnitPtr& unit) { return unit->key.collective != Collective::kAllGather; };
    std::ranges::copy_if(units, std::back_inserter(gone), reduces);
    std::erase_if(units, reduces);
  }
}

Reduction UnitCall::reduction(UnitKey key, bool on_gpu) const {
  Reduction reduction;
  reduction.why_exact = why_exact;
  reduction.input_stream = input_stream;
  key.name = unit->name;
  key.layout = unit->layout;
  if (sections != nullptr) {
    const Sections& given = with_gradients != nullptr ? *with_gradients : *sections;
    const int64_t rows = key.collective == Collective::kReduceScatter ? unit->num_ranks() : 1;
    key.layout = given.hash();
    if (rows * given.row_elements() == key.num_elements) {
      key.num_elements = rows * sections->row_elements();
      key.layout = sections->hash();
      reduction.sections = with_gradients;
    }
  }
  reduction.unit = unit->of_calls(key, on_gpu);
  return reduction;
}

}  // namespace isthmus::torch_backend
