#include "torch/sides/device_units.h"

#include <ATen/ops/empty.h>

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

// Returns a view of the tensor.
ConstBuffer residual_buffer(const at::Tensor& residual, const UnitKey& key) {
  TORCH_CHECK_VALUE(residual.is_cpu() && residual.scalar_type() == at::kFloat && residual.is_contiguous(),
                    "isthmus: residual of unit ", key.name, ": expected a contiguous float32 tensor on the CPU, got ",
                    residual.scalar_type(), " on ", residual.device());
  return {residual.data_ptr(), residual.numel(), DataType::kFloat32};
}

void append_copies_of_units(Communicator& communicator, std::vector<SavedUnit>& saved) {
  Device& device = communicator.device();
  for (const UnitState& unit : communicator.units().states()) {
    int64_t num_parked = 0;
    for (const ParkedState& parked : unit.parked) {
      num_parked += parked.values.num_elements;
    }
    SavedUnit& copy = saved.emplace_back(SavedUnit{unit.key, unit.step, unit.scale, copy_of(unit.residual, device),
                                                   copy_of(unit.result_residual, device), unit.parked,
                                                   at::empty({num_parked}, at::kFloat)});
    const Buffer all{copy.parked_values.data_ptr(), num_parked, DataType::kFloat32};
    int64_t begin = 0;
    for (ParkedState& parked : copy.parked) {
      const Buffer place = all.slice(begin, parked.values.num_elements);
      device.read(parked.values, place);
      parked.values = place;
      begin += place.num_elements;
    }
  }
}

void load_into(Communicator& communicator, const SavedUnit& unit) {
  communicator.units().load({unit.key, unit.step, unit.scale, residual_buffer(unit.residual, unit.key),
                             residual_buffer(unit.result_residual, unit.key), unit.parked});
}

}  // namespace

DeviceUnits::DeviceUnits(const Group& group, std::vector<Side*> sides)
    : group_(group), sides_(std::move(sides)), reduces_(sides_.back()) {}

void DeviceUnits::run_everywhere(const char* name, const std::function<void(Communicator&)>& action) {
  const WithoutGil without_gil;
  forget_those_gone();
  for (Side* side : sides_) {
    if (side->has_communicator()) {
      run(*side, name, action);
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

void DeviceUnits::forget_those_gone() {
  const std::set<uint64_t> owners = gone_.take();
  if (!owners.empty()) {
    for (Side* side : sides_) {
      if (side->has_communicator()) {
        side->run_between_collectives("isthmus:forget_units",
                                      [owners](Communicator& communicator) { communicator.units().forget(owners); });
      }
    }
  }
}

std::vector<SavedUnit> DeviceUnits::states() {
  const auto saved = std::make_shared<std::vector<SavedUnit>>();
  run_everywhere("isthmus:unit_states",
                 [saved](Communicator& communicator) { append_copies_of_units(communicator, *saved); });
  return *saved;
}

std::vector<SavedUnit> DeviceUnits::states_at_end(bool undo) {
  std::vector<SavedUnit> saved;
  for (Side* side : sides_) {
    side->run_at_end([&](Communicator& communicator) {
      if (undo) {
        communicator.units().undo_step();
      }
      append_copies_of_units(communicator, saved);
    });
  }
  return saved;
}

void DeviceUnits::load(const SavedUnit& unit) {
  Side* side = nullptr;
  {
    const std::lock_guard lock(mutex_);
    side = reduces_;
  }
  run(*side, "isthmus:load_unit", [unit](Communicator& communicator) { load_into(communicator, unit); });
  const std::lock_guard lock(mutex_);
  loaded_ = true;
}

// A checkpoint does not say on which device its units will be reduced, so load() may have put them on another one.
void DeviceUnits::bring_loaded_to(Side& side) {
  forget_those_gone();
  Side* from = nullptr;
  {
    const std::lock_guard lock(mutex_);
    from = std::exchange(reduces_, &side);
    if (!std::exchange(loaded_, false) || from == &side) {
      return;
    }
  }
  const auto units = std::make_shared<std::vector<SavedUnit>>();
  run(*from, "isthmus:unit_states", [units](Communicator& communicator) {
    append_copies_of_units(communicator, *units);
    communicator.units().clear();
  });
  run(side, "isthmus:load_unit", [units](Communicator& communicator) {
    for (const SavedUnit& unit : *units) {
      load_into(communicator, unit);
    }
  });
}

void DeviceUnits::count_dropped(int64_t num_units) {
  run(*sides_.front(), "isthmus:count_dropped",
      [num_units](Communicator& communicator) { communicator.units().count_dropped(num_units); });
}

}  // namespace isthmus::torch_backend
