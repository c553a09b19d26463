#include "unit_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "isthmus/error.h"
#include "stable_hash.h"

namespace isthmus {
namespace {

std::pair<Buffer, AlignedMemory> make_residual(const UnitKey& key, int64_t num_elements) {
  Buffer residual{nullptr, num_elements, DataType::kFloat32};
  AlignedMemory memory;
  if (num_elements > 0) {
    try {
      memory = allocate_aligned(residual.bytes());
    } catch (const std::bad_alloc&) {
      throw Error(
          detail::concatenate("unit \"", key.name, "\": no memory for a residual of ", residual.bytes(), " bytes"));
    }
    residual.data = memory.get();
    std::memset(residual.data, 0, static_cast<size_t>(residual.bytes()));
  }
  return {residual, std::move(memory)};
}

Unit make_unit(const UnitKey& key, ResidualSizes sizes) {
  Unit unit;
  unit.hash = key.hash();
  std::tie(unit.residual, unit.residual_memory) = make_residual(key, sizes.residual_elements);
  std::tie(unit.result_residual, unit.result_residual_memory) = make_residual(key, sizes.result_residual_elements);
  return unit;
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

// A product that is too large for float32 becomes the largest that is not: Inf would stay in the residual for good.
void multiply(Buffer residual, double factor) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  float* values = residual.as<float>();
  for (int64_t i = 0; i < residual.num_elements; ++i) {
    values[i] = static_cast<float>(std::clamp(values[i] * factor, -kLargest, kLargest));
  }
}

}  // namespace

uint64_t UnitKey::hash() const {
  return StableHash().add(num_elements).add(dtype).add(collective).add(layout).add(name).value();
}

void Unit::follow_scale(double new_scale) {
  if (scale != 0 && scale != new_scale) {
    multiply(residual, scale / new_scale);
  }
  scale = new_scale;
}

void Unit::scale_residuals(double factor) {
  multiply(residual, factor);
  multiply(result_residual, factor);
}

Unit* UnitTable::find_or_add(const UnitKey& key, ResidualSizes sizes) {
  const auto found = units_.find(key);
  if (found != units_.end()) {
    return &found->second;
  }
  if (full()) {
    return nullptr;
  }
  Unit& unit = units_.emplace(key, make_unit(key, sizes)).first->second;
  residual_bytes_ += unit.residual_bytes();
  return &unit;
}

void UnitTable::load(const UnitState& state, ResidualSizes sizes) {
  const auto found = units_.find(state.key);
  ISTHMUS_CHECK(Error, found != units_.end() || !full(), "unit \"", state.key.name, "\": cannot load its state, since ",
                size(), " units have one already (max_units)");
  ISTHMUS_CHECK(Error, std::isfinite(state.scale), "unit \"", state.key.name, "\": cannot load the scale ",
                state.scale);
  Unit unit = make_unit(state.key, sizes);
  unit.step = state.step;
  unit.scale = state.scale;
  check_loadable(state.key, "residual", state.residual, unit.residual);
  check_loadable(state.key, "result residual", state.result_residual, unit.result_residual);
  const auto copy = [](ConstBuffer from, Buffer to) { convert(from, to.slice(0, from.num_elements)); };
  copy(state.residual, unit.residual);
  copy(state.result_residual, unit.result_residual);
  residual_bytes_ += unit.residual_bytes() - (found != units_.end() ? found->second.residual_bytes() : 0);
  units_.insert_or_assign(state.key, std::move(unit));
}

std::vector<UnitState> UnitTable::states() const {
  std::vector<UnitState> states;
  states.reserve(units_.size());
  for (const auto& [key, unit] : units_) {
    states.push_back({key, unit.step, unit.scale, unit.residual, unit.result_residual});
  }
  return states;
}

void UnitTable::scale_residuals(double factor) {
  for (auto& [key, unit] : units_) {
    unit.scale_residuals(factor);
  }
}

void UnitTable::clear() {
  units_.clear();
  residual_bytes_ = 0;
}

}  // namespace isthmus
