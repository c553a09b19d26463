#include "torch/units/unit_registry.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "communicator/plan/policy.h"
#include "communicator/units/group_units.h"

namespace isthmus::torch_backend {
namespace {

// As the device's multiply() does.
float to_finite(double value) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kLargest, kLargest));
}

bool is_named_after(const UnitKey& key, const std::vector<UnitHandlePtr>& handles) {
  return std::ranges::any_of(handles, [&key](const UnitHandlePtr& handle) { return handle->name == key.name; });
}

}  // namespace

UnitHandlePtr UnitRegistry::make(std::string name, uint64_t layout, std::optional<Reason> why_exact,
                                 std::string parameters, bool counted) {
  const std::lock_guard lock(mutex_);
  if (counted) {
    const int number = counts_[name]++;
    name = with_ordinal(std::move(name), number);
  }
  auto handle =
      std::make_shared<UnitHandle>(std::move(name), layout, why_exact, std::move(parameters), shared_from_this());
  std::erase_if(handles_, [](const std::weak_ptr<UnitHandle>& one) { return one.expired(); });
  handles_.push_back(handle);
  return handle;
}

UnitPtr UnitRegistry::of_untold_call(UnitKey key, std::optional<Reason> why_exact, bool on_gpu) {
  const std::lock_guard lock(mutex_);
  UnitTable& table = tables_[on_gpu ? 1 : 0];
  if (UnitPtr unit = table.find(key)) {
    return unit;
  }
  if (auto loaded = loaded_.extract(key)) {
    UnitPtr unit = isthmus::make_unit(key);
    unit->loaded = std::move(loaded.mapped());
    table.put(unit);
    return unit;
  }
  if (!why_exact) {
    why_exact = why_policy_is_exact(group_.options, key.name, key.num_elements);
  }
  const bool is_coded = group_.options.is_lossy() && accumulate_dtype(key.dtype) == DataType::kFloat32;
  if (!why_exact && is_coded) {
    if (UnitPtr unit = table.find_or_add(key)) {
      return unit;
    }
    why_exact = Reason::kTooManyUnits;
  }
  return isthmus::make_unit(std::move(key), why_exact);
}

UnitPtr UnitRegistry::make_unit(const UnitKey& key, std::optional<Reason> why_exact) {
  UnitPtr unit = isthmus::make_unit(key, why_exact);
  const std::lock_guard lock(mutex_);
  if (auto loaded = loaded_.extract(key)) {
    unit->loaded = std::move(loaded.mapped());
  }
  return unit;
}

void UnitRegistry::load(UnitState state) {
  check_loadable(group_.map, group_.options, state);
  const std::lock_guard lock(mutex_);
  UnitState& loaded = loaded_[state.key];
  loaded = std::move(state);
}

std::vector<UnitHandlePtr> UnitRegistry::handles() const {
  const std::lock_guard lock(mutex_);
  std::vector<UnitHandlePtr> handles;
  for (const std::weak_ptr<UnitHandle>& one : handles_) {
    if (UnitHandlePtr handle = one.lock()) {
      handles.push_back(std::move(handle));
    }
  }
  return handles;
}

std::vector<UnitPtr> UnitRegistry::units_of(const std::optional<std::vector<UnitHandlePtr>>& wanted) const {
  std::vector<UnitPtr> units;
  for (const UnitHandlePtr& handle : wanted ? *wanted : handles()) {
    if (handle->is_of(*this)) {
      const std::vector<UnitPtr> of_handle = handle->all();
      units.insert(units.end(), of_handle.begin(), of_handle.end());
    }
  }
  const std::lock_guard lock(mutex_);
  for (const UnitTable& table : tables_) {
    const std::vector<UnitPtr> untold = wanted ? std::vector<UnitPtr>() : table.all();
    units.insert(units.end(), untold.begin(), untold.end());
  }
  return units;
}

std::vector<UnitState> UnitRegistry::loaded() const {
  const std::lock_guard lock(mutex_);
  std::vector<UnitState> all;
  all.reserve(loaded_.size());
  for (const auto& [key, state] : loaded_) {
    all.push_back(state);
  }
  return all;
}

void UnitRegistry::scale_loaded(double factor, const std::optional<std::vector<UnitHandlePtr>>& wanted) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, loaded] : loaded_) {
    for (std::vector<float>* const values : {&loaded.residual, &loaded.result_residual}) {
      for (float& value : *values) {
        value = !wanted || is_named_after(key, *wanted) ? to_finite(value * factor) : value;
      }
    }
  }
}

void UnitRegistry::clear(const std::optional<std::vector<UnitHandlePtr>>& wanted) {
  for (const UnitHandlePtr& handle : wanted ? *wanted : handles()) {
    if (handle->is_of(*this)) {
      handle->clear();
    }
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(loaded_, [&](const auto& entry) { return !wanted || is_named_after(entry.first, *wanted); });
  for (UnitTable& table : tables_) {
    if (!wanted) {
      table.clear();
    }
  }
}

}  // namespace isthmus::torch_backend
