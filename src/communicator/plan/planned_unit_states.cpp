#include "communicator/plan/planned_unit_states.h"

#include <cmath>

#include "isthmus/error.h"

namespace isthmus {
namespace {

// Sizes in bytes, and rounded up, are then numbers, too.
constexpr int64_t kMostElements = int64_t{1} << 56;

}  // namespace

void PlannedUnitStates::load(const UnitState& state) {
  const UnitKey& key = state.key;
  const int num_ranks = tiers_.world_size();
  const bool is_reduction = key.collective != Collective::kAllGather;
  const bool divisible = key.collective == Collective::kAllReduce || key.num_elements % num_ranks == 0;
  ISTHMUS_CHECK(Error,
                is_reduction && key.num_elements > 0 && key.num_elements <= kMostElements && divisible &&
                    accumulate_dtype(key.dtype) == DataType::kFloat32,
                "unit \"", key.name, "\": cannot load the state of a ", to_string(key.collective), " of ",
                key.num_elements, " elements of ", to_string(key.dtype), " over ", num_ranks, " ranks");
  const int64_t num_rows = key.collective == Collective::kAllReduce ? 1 : num_ranks;
  const int64_t row = key.sections == nullptr ? key.num_elements / num_rows : key.sections->row_elements();
  ISTHMUS_CHECK(Error, row == key.num_elements / num_rows, "unit \"", key.name,
                "\": cannot load a state whose parameters have ", row, " elements in each of ", num_rows, " rows of ",
                key.num_elements);
  planner_.load(state);
  show_memory();
}

void PlannedUnitStates::clear(const Owners& owners) {
  planner_.units().clear(owners);
  show_memory();
}

void PlannedUnitStates::forget(const std::set<uint64_t>& owners) {
  planner_.units().forget(owners);
  show_memory();
}

void PlannedUnitStates::scale_residuals(double factor, const Owners& owners) {
  ISTHMUS_CHECK(Error, std::isfinite(factor) && factor > 0, "cannot scale residuals by ", factor,
                ": expected a finite number above 0");
  planner_.units().scale_residuals(factor, owners);
}

int64_t PlannedUnitStates::undo_step(const Owners& owners) {
  const int64_t num_lost = planner_.units().undo_step(owners);
  show_memory();
  return num_lost;
}

int64_t PlannedUnitStates::skip_step(const Owners& owners) {
  statistics_.count_skipped_step();
  return undo_step(owners);
}

void PlannedUnitStates::show_memory() {
  statistics_.show_memory(planner_.units().size(), planner_.units().residual_bytes());
}

}  // namespace isthmus
