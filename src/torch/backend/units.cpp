// The state of a group's units, for those who save it or know of loss scales.
#include <utility>

#include "isthmus/error.h"
#include "torch/backend/internal.h"

namespace isthmus::torch_backend {
namespace {

// In the host's memory.
at::Tensor copy_of(ConstBuffer residual, Device& device) {
  if (residual.num_elements == 0) {
    return {};
  }
  at::Tensor copy = at::empty({residual.num_elements}, at::kFloat);
  device.read(residual, {copy.data_ptr(), residual.num_elements, DataType::kFloat32});
  return copy;
}

// A view; empty if the tensor is undefined.
ConstBuffer residual_buffer(const at::Tensor& residual, const UnitKey& key) {
  if (!residual.defined()) {
    return {nullptr, 0, DataType::kFloat32};
  }
  TORCH_CHECK_VALUE(residual.is_cpu() && residual.scalar_type() == at::kFloat && residual.is_contiguous(),
                    "isthmus: residual of unit ", key.name, ": expected a contiguous float32 tensor on the CPU, got ",
                    residual.scalar_type(), " on ", residual.device());
  return {residual.data_ptr(), residual.numel(), DataType::kFloat32};
}

std::vector<SavedUnit> copies_of_units(Communicator& communicator) {
  std::vector<SavedUnit> saved;
  Device& device = communicator.device();
  for (const UnitState& unit : communicator.unit_states()) {
    saved.push_back(
        {unit.key, unit.step, unit.scale, copy_of(unit.residual, device), copy_of(unit.result_residual, device)});
  }
  return saved;
}

void load(const SavedUnit& unit, Communicator& communicator) {
  communicator.load_unit({unit.key, unit.step, unit.scale, residual_buffer(unit.residual, unit.key),
                          residual_buffer(unit.result_residual, unit.key)});
}

}  // namespace

void BackendIsthmus::run_between_collectives(const char* name, const std::function<void(Communicator&)>& action) {
  run_on_side(false, name, action);
  if (cuda_ && cuda_->has_communicator()) {
    run_on_side(true, name, action);
  }
}

void BackendIsthmus::run_on_side(bool gpu, const char* name, const std::function<void(Communicator&)>& action) {
  const WithoutGil without_gil;
  process_.require_this();
  if (!two_tier()) {
    return;
  }
  if (!gpu) {
    run_on_worker(name, action);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    require_usable();
  }
  cuda_->with_communicator(action);
}

std::vector<SavedUnit> BackendIsthmus::unit_states() {
  std::vector<SavedUnit> saved;
  run_between_collectives("isthmus:unit_states", [&saved](Communicator& communicator) {
    for (SavedUnit& unit : copies_of_units(communicator)) {
      saved.push_back(std::move(unit));
    }
  });
  return saved;
}

void BackendIsthmus::load_unit(const SavedUnit& unit) {
  bool gpu = false;
  {
    std::lock_guard lock(mutex_);
    gpu = units_on_gpu_;
  }
  run_on_side(gpu, "isthmus:load_unit", [&unit](Communicator& communicator) { load(unit, communicator); });
  std::lock_guard lock(mutex_);
  units_loaded_ = true;
}

// Before a reduction there. A checkpoint does not say which device it will be used on.
void BackendIsthmus::bring_loaded_units(bool to_gpu) {
  {
    std::lock_guard lock(mutex_);
    const bool bring = std::exchange(units_loaded_, false) && units_on_gpu_ != to_gpu;
    units_on_gpu_ = to_gpu;
    if (!bring) {
      return;
    }
  }
  std::vector<SavedUnit> units;
  run_on_side(!to_gpu, "isthmus:unit_states", [&units](Communicator& communicator) {
    units = copies_of_units(communicator);
    communicator.clear_units();
  });
  run_on_side(to_gpu, "isthmus:load_unit", [&units](Communicator& communicator) {
    for (const SavedUnit& unit : units) {
      load(unit, communicator);
    }
  });
}

void BackendIsthmus::clear_units() {
  run_between_collectives("isthmus:clear_units", [](Communicator& communicator) { communicator.clear_units(); });
}

void BackendIsthmus::scale_residuals(double factor) {
  run_between_collectives("isthmus:scale_residuals",
                          [factor](Communicator& communicator) { communicator.scale_residuals(factor); });
}

void BackendIsthmus::count_step() {
  run_between_collectives("isthmus:count_step", [](Communicator& communicator) { communicator.count_step(); });
}

void BackendIsthmus::count_skipped_step() {
  run_between_collectives("isthmus:count_skipped_step",
                          [](Communicator& communicator) { communicator.count_skipped_step(); });
}

void BackendIsthmus::set_gradients(const std::string& mode) {
  process_.require_this();
  isthmus::Options options = values_;
  for (const OptionField& field : option_fields()) {
    if (field.name == std::string("gradients")) {
      field.set(options, mode);  // throws where it is out of range
    }
  }
  std::lock_guard lock(mutex_);
  gradients_ = options.gradients;
  units_.set_gradients_in_backward(gradients_in_backward(gradients_));
}

}  // namespace isthmus::torch_backend
