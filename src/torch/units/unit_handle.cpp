#include "torch/units/unit_handle.h"

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

Reduction UnitHandle::reduction(const CallShape& shape, bool on_gpu, const std::shared_ptr<const Sections>& sections,
                                const std::shared_ptr<const Sections>& with_gradients) {
  if (sections == nullptr) {
    return {.unit = of_shape(shape, layout, on_gpu)};
  }
  const int64_t rows = shape.collective == Collective::kReduceScatter ? registry_->num_ranks() : 1;
  const std::shared_ptr<const Sections>& given = with_gradients != nullptr ? with_gradients : sections;
  if (rows * given->row_elements() != shape.num_elements) {
    return {.unit = of_shape(shape, given->hash(), on_gpu)};
  }
  const CallShape whole{rows * sections->row_elements(), shape.dtype, shape.collective};
  return {.unit = of_shape(whole, sections->hash(), on_gpu), .sections = with_gradients};
}

UnitPtr UnitHandle::of_shape(const CallShape& shape, uint64_t layout_of_call, bool on_gpu) {
  const std::lock_guard lock(mutex_);
  for (const Shaped& one : units_) {
    if (one.shape == shape && one.layout == layout_of_call && one.on_gpu == on_gpu) {
      return one.unit;
    }
  }
  const UnitKey key{name, shape.num_elements, shape.dtype, shape.collective, layout_of_call};
  return units_.emplace_back(Shaped{shape, layout_of_call, on_gpu, registry_->make_unit(key, why_exact)}).unit;
}

std::vector<UnitPtr> UnitHandle::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<UnitPtr> units;
  units.reserve(units_.size());
  for (const Shaped& one : units_) {
    units.push_back(one.unit);
  }
  return units;
}

void UnitHandle::clear() {
  std::vector<Shaped> gone;  // freed without the lock
  const std::lock_guard lock(mutex_);
  std::erase_if(units_, [&gone](Shaped& one) {
    const bool reduces = one.shape.collective != Collective::kAllGather;
    if (reduces) {
      gone.push_back(std::move(one));
    }
    return reduces;
  });
}

}  // namespace isthmus::torch_backend
