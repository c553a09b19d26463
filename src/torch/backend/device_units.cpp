#include "torch/backend/device_units.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "torch/base/interpreter.h"

namespace isthmus::torch_backend {
namespace {

// Says of each unit whether somebody holds it.
void find_handles(const std::vector<UnitHandlePtr>& handles, std::vector<UnitState>& saved) {
  for (const UnitHandlePtr& handle : handles) {
    for (const UnitPtr& unit : handle->all()) {
      const auto found = std::ranges::find(saved, unit->key, &UnitState::key);
      if (found != saved.end()) {
        found->is_held = true;
        found->parameters = handle->parameters;
      }
    }
  }
}

}  // namespace

void DeviceUnits::run_everywhere(const char* name, const UnitHandles& units,
                                 const std::function<void(UnitStates&, const Units&)>& action) {
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
      run(*side, name, [meant, held, action](Communicator& communicator) { action(communicator.units(), meant); });
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

std::vector<UnitState> DeviceUnits::states() {
  const auto saved = std::make_shared<std::vector<UnitState>>();
  run_everywhere("isthmus:unit_states", {}, [saved](UnitStates& states, const Units& /*meant*/) {
    std::ranges::move(states.states(), std::back_inserter(*saved));
  });
  std::vector<UnitState> all = *saved;
  find_handles(registry_.handles(), all);
  std::ranges::move(registry_.loaded(), std::back_inserter(all));
  return all;
}

std::vector<UnitState> DeviceUnits::states_at_end(bool undo) {
  std::vector<UnitState> saved;
  for (Side* side : sides_) {
    side->run_at_end([&](Communicator& communicator) {
      if (undo) {
        communicator.units().undo_step();
      }
      std::ranges::move(communicator.units().states(), std::back_inserter(saved));
    });
  }
  std::ranges::move(registry_.loaded(), std::back_inserter(saved));
  return saved;
}

void DeviceUnits::load(UnitState state) {
  group_.process.require_this();
  if (group_.two_tier()) {
    registry_.load(std::move(state));
  }
}

void DeviceUnits::clear(const UnitHandles& units) {
  group_.process.require_this();
  registry_.clear(units);
}

void DeviceUnits::scale_residuals(double factor, const UnitHandles& units) {
  run_everywhere("isthmus:scale_residuals", units,
                 [factor](UnitStates& states, const Units& meant) { states.scale_residuals(factor, meant); });
  registry_.scale_loaded(factor, units);
}

void DeviceUnits::count_dropped(int64_t num_units) {
  run(*sides_.front(), "isthmus:count_dropped",
      [num_units](Communicator& communicator) { communicator.units().count_dropped(num_units); });
}

}  // namespace isthmus::torch_backend
