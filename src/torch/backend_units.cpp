// The state of a group's units, for those who save it or know of loss scales.
#include <ATen/ops/from_blob.h>

#include <utility>

#include "isthmus/error.h"
#include "torch/backend_internal.h"

namespace isthmus::torch_backend {
namespace {

at::Tensor copy_of(ConstBuffer residual) {
  if (residual.num_elements == 0) {
    return {};
  }
  return at::from_blob(const_cast<void*>(residual.data), {residual.num_elements}, at::kFloat).clone();
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

}  // namespace

std::vector<SavedUnit> BackendIsthmus::unit_states() {
  std::vector<SavedUnit> saved;
  run_between_collectives("isthmus:unit_states", [this, &saved] {
    for (const UnitState& unit : communicator_->unit_states()) {
      saved.push_back({unit.key, unit.step, unit.scale, copy_of(unit.residual), copy_of(unit.result_residual)});
    }
  });
  return saved;
}

void BackendIsthmus::load_unit(const SavedUnit& unit) {
  run_between_collectives("isthmus:load_unit", [this, &unit] {
    communicator_->load_unit({unit.key, unit.step, unit.scale, residual_buffer(unit.residual, unit.key),
                              residual_buffer(unit.result_residual, unit.key)});
  });
}

void BackendIsthmus::clear_units() {
  run_between_collectives("isthmus:clear_units", [this] { communicator_->clear_units(); });
}

void BackendIsthmus::scale_residuals(double factor) {
  run_between_collectives("isthmus:scale_residuals", [this, factor] { communicator_->scale_residuals(factor); });
}

void BackendIsthmus::count_step() {
  run_between_collectives("isthmus:count_step", [this] { communicator_->count_step(); });
}

void BackendIsthmus::count_skipped_step() {
  run_between_collectives("isthmus:count_skipped_step", [this] { communicator_->count_skipped_step(); });
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
