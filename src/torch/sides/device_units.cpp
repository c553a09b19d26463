#include "torch/sides/device_units.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "torch/base/interpreter.h"

namespace isthmus::torch_backend {
namespace {

// Returns a copy in host memory.
at::Tensor copy_of(ConstBuffer residual, Device& device) {
  at::Tensor copy = at::empty({residual.num_elements}, at::kFloat);
  if (residual.num_elements > 0) {
    device.read(residual, {copy.data_ptr(), residual.num_elements, DataType::kFloat32});
  }
  return copy;
}

at::Tensor copy_of(const std::vector<float>& values) {
  at::Tensor copy = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::ranges::copy(values, copy.data_ptr<float>());
  return copy;
}

// Returns a view of the tensor.
ConstBuffer residual_buffer(const at::Tensor& residual, const UnitKey& key) {
  TORCH_CHECK_VALUE(residual.is_cpu() && residual.scalar_type() == at::kFloat && residual.is_contiguous(),
                    "isthmus: residual of unit ", key.name, ": expected a contiguous float32 tensor on the CPU, got ",
                    residual.scalar_type(), " on ", residual.device());
  return {residual.data_ptr(), residual.numel(), DataType::kFloat32};
}

void append_copies_of_units(Communicator& communicator, const Units& units, std::vector<SavedUnit>& saved) {
  Device& device = communicator.device();
  for (const UnitState& unit : communicator.units().states(units)) {
    saved.push_back(
        {unit.key, unit.step, unit.scale, copy_of(unit.residual, device), copy_of(unit.result_residual, device)});
  }
}

// Says of each unit whether somebody holds it.
void find_handles(const std::vector<UnitHandlePtr>& handles, std::vector<SavedUnit>& saved) {
  for (const UnitHandlePtr& handle : handles) {
    for (const UnitPtr& unit : handle->all()) {
      const auto found = std::ranges::find(saved, unit->key, &SavedUnit::key);
      if (found != saved.end()) {
        found->is_held = true;
        found->parameters = handle->parameters();
      }
    }
  }
}

}  // namespace

void DeviceUnits::run_everywhere(const char* name, const UnitHandles& units,
                                 const std::function<void(Communicator&, const Units&)>& action) {
  const WithoutGil without_gil;
  const std::vector<UnitPtr> held = registry_.units_of(units);  // until the action is done
  Units meant;
  if (units) {
    meant.emplace();
    for (const UnitPtr& unit : held) {
      meant->insert(unit.get());
    }
  }
  for (Side* side : sides_) {
    if (side->has_communicator()) {
      run(*side, name, [meant, held, action](Communicator& communicator) { action(communicator, meant); });
    }
  }
}

void DeviceUnits::run(Side& side, const char* name, const std::function<void(Communicator&)>& action) {
  const WithoutGil without_gil;
  group_.process.require_this();
  if (group_.two_tier()) {
    if (const WorkPtr work = side.run_between_collectives(name, action)) {
      work->wait();
    }
  }
}

std::vector<SavedUnit> DeviceUnits::states(const UnitHandles& units) {
  const auto saved = std::make_shared<std::vector<SavedUnit>>();
  run_everywhere("isthmus:unit_states", units, [saved](Communicator& communicator, const Units& meant) {
    append_copies_of_units(communicator, meant, *saved);
  });
  std::vector<SavedUnit> all = *saved;
  find_handles(units ? *units : registry_.handles(), all);
  std::ranges::move(loaded(units), std::back_inserter(all));
  return all;
}

std::vector<SavedUnit> DeviceUnits::states_at_end(bool undo) {
  std::vector<SavedUnit> saved;
  for (Side* side : sides_) {
    side->run_at_end([&](Communicator& communicator) {
      if (undo) {
        communicator.units().undo_step();
      }
      append_copies_of_units(communicator, {}, saved);
    });
  }
  std::ranges::move(loaded({}), std::back_inserter(saved));
  return saved;
}

std::vector<SavedUnit> DeviceUnits::loaded(const UnitHandles& units) const {
  std::vector<SavedUnit> saved;
  for (const auto& [key, unit] : registry_.loaded_for(units)) {
    saved.push_back({key, unit.state.step, unit.state.scale, copy_of(unit.state.residual),
                     copy_of(unit.state.result_residual), unit.is_held, unit.parameters});
  }
  return saved;
}

void DeviceUnits::load(const SavedUnit& unit) {
  group_.process.require_this();
  if (group_.two_tier()) {
    registry_.load({unit.key, unit.step, unit.scale, residual_buffer(unit.residual, unit.key),
                    residual_buffer(unit.result_residual, unit.key)},
                   unit.is_held, unit.parameters);
  }
}

void DeviceUnits::clear(const UnitHandles& units) {
  group_.process.require_this();
  registry_.clear(units);
}

void DeviceUnits::scale_residuals(double factor, const UnitHandles& units) {
  run_everywhere("isthmus:scale_residuals", units, [factor](Communicator& communicator, const Units& meant) {
    communicator.units().scale_residuals(factor, meant);
  });
  registry_.scale_loaded(factor, units);
}

void DeviceUnits::count_dropped(int64_t num_units) {
  run(*sides_.front(), "isthmus:count_dropped",
      [num_units](Communicator& communicator) { communicator.units().count_dropped(num_units); });
}

}  // namespace isthmus::torch_backend
