#include "communicator/units/unit_table.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "isthmus/error.h"
#include "kernels/block/device.h"
#include "stable_hash.h"

namespace isthmus {
namespace {

// Zeros: for `lane`, on which they are written.
std::pair<Buffer, DeviceMemory> make_residual(Device& device, const UnitKey& key, int64_t num_elements, Lane lane) {
  Buffer residual{nullptr, num_elements, DataType::kFloat32};
  DeviceMemory memory;
  if (num_elements > 0) {
    try {
      memory = device.allocate(residual.bytes());
    } catch (const std::bad_alloc&) {
      throw Error(
          detail::concatenate("unit \"", key.name, "\": no memory for a residual of ", residual.bytes(), " bytes"));
    }
    residual.data = memory.get();
    device.clear(residual, device.lane(lane));
  }
  return {residual, std::move(memory)};
}

void make_residuals(Device& device, const UnitKey& key, ResidualSizes sizes, Unit& unit) {
  std::tie(unit.residual, unit.residual_memory) = make_residual(device, key, sizes.residual_elements, Lane::kEncode);
  std::tie(unit.result_residual, unit.result_residual_memory) =
      make_residual(device, key, sizes.result_residual_elements, Lane::kDecode);
}

Unit make_unit(Device& device, const UnitKey& key, uint64_t step) {
  Unit unit;
  unit.hash = key.hash();
  unit.step = step;
  unit.contexts = make_contexts(device);
  if (unit.contexts != nullptr) {
    for (int i = 0; i < kNumPacketUses; ++i) {
      const auto use = static_cast<PacketUse>(i);
      device.set_context(unit.contexts.get() + i, context_of(unit.hash, step, use), device.lane(lane_of(use)));
    }
  }
  return unit;
}

// How many packets of pieces were encoded.
uint64_t step_of(Device& device, const Unit& unit) {
  if (unit.contexts == nullptr) {
    return unit.step;
  }
  kernels::DeviceContext context;
  const int64_t bytes = sizeof(context);
  device.read({unit.contexts.get(), bytes, DataType::kByte}, {&context, bytes, DataType::kByte});
  return context.step;
}

void check_loadable(const UnitKey& key, const char* which, ConstBuffer from, ConstBuffer residual) {
  if (from.num_elements == 0) {
    return;
  }
  ISTHMUS_CHECK(Error, from.dtype == DataType::kFloat32 && from.num_elements == residual.num_elements, "unit \"",
                key.name, "\": cannot load a ", which, " of ", from.num_elements, " elements of ",
                to_string(from.dtype), " where this group has ", residual.num_elements, " of float32");
  const float* values = from.as<float>();
  ISTHMUS_CHECK(Error,
                std::all_of(values, values + from.num_elements, [](float value) { return std::isfinite(value); }),
                "unit \"", key.name, "\": cannot load a ", which, " that holds NaN or Inf");
}

// A codec without error feedback has no residual to multiply.
void multiply(Device& device, Buffer residual, double factor, Lane lane) {
  if (residual.num_elements > 0) {
    device.multiply(residual, factor, device.lane(lane));
  }
}

}  // namespace

uint64_t UnitKey::hash() const {
  return StableHash().add(num_elements).add(dtype).add(collective).add(layout).add(name).value();
}

std::shared_ptr<kernels::DeviceContext> make_contexts(Device& device) {
  if (device.is_host()) {
    return nullptr;
  }
  return std::static_pointer_cast<kernels::DeviceContext>(
      device.allocate(int64_t{kNumPacketUses} * sizeof(kernels::DeviceContext)));
}

void Unit::follow_scale(Device& device, double new_scale) {
  if (scale != 0 && scale != new_scale) {
    multiply(device, residual, scale / new_scale, Lane::kEncode);
  }
  scale = new_scale;
}

void Unit::scale_residuals(Device& device, double factor) {
  multiply(device, residual, factor, Lane::kEncode);
  multiply(device, result_residual, factor, Lane::kDecode);
}

const Unit* UnitTable::find(const UnitKey& key) const {
  const auto found = units_.find(key);
  return found == units_.end() ? nullptr : &found->second;
}

Unit* UnitTable::find_or_add(const UnitKey& key) {
  const auto found = units_.find(key);
  if (found != units_.end()) {
    return &found->second;
  }
  if (full()) {
    return nullptr;
  }
  return &units_.emplace(key, make_unit(*device_, key, 0)).first->second;
}

void UnitTable::add_residuals(Unit& unit, const UnitKey& key, ResidualSizes sizes) {
  make_residuals(*device_, key, sizes, unit);
  residual_bytes_ += unit.residual_bytes();
}

void UnitTable::drop_residuals(Unit& unit) {
  residual_bytes_ -= unit.residual_bytes();
  unit.residual = unit.result_residual = {};
  unit.residual_memory = unit.result_residual_memory = nullptr;
}

void UnitTable::load(const UnitState& state, ResidualSizes sizes) {
  const auto found = units_.find(state.key);
  ISTHMUS_CHECK(Error, found != units_.end() || !full(), "unit \"", state.key.name, "\": cannot load its state, since ",
                size(), " units have one already (max_units)");
  ISTHMUS_CHECK(Error, std::isfinite(state.scale), "unit \"", state.key.name, "\": cannot load the scale ",
                state.scale);
  Unit unit = make_unit(*device_, state.key, state.step);
  unit.scale = state.scale;
  if (state.residual.num_elements + state.result_residual.num_elements > 0) {
    make_residuals(*device_, state.key, sizes, unit);
  }
  check_loadable(state.key, "residual", state.residual, unit.residual);
  check_loadable(state.key, "result residual", state.result_residual, unit.result_residual);
  const auto copy = [this](ConstBuffer from, Buffer to) { device_->write(from, to.slice(0, from.num_elements)); };
  copy(state.residual, unit.residual);
  copy(state.result_residual, unit.result_residual);
  residual_bytes_ += unit.residual_bytes() - (found != units_.end() ? found->second.residual_bytes() : 0);
  units_.insert_or_assign(state.key, std::move(unit));
}

std::vector<UnitState> UnitTable::states() const {
  std::vector<UnitState> states;
  states.reserve(units_.size());
  for (const auto& [key, unit] : units_) {
    states.push_back({key, step_of(*device_, unit), unit.scale, unit.residual, unit.result_residual});
  }
  return states;
}

void UnitTable::scale_residuals(double factor) {
  for (auto& [key, unit] : units_) {
    unit.scale_residuals(*device_, factor);
  }
}

void UnitTable::clear() {
  units_.clear();
  residual_bytes_ = 0;
}

}  // namespace isthmus
