// The units of one process group: those that somebody holds, those that nobody holds, and what a checkpoint brought.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "communicator/units/unit.h"
#include "communicator/units/unit_table.h"
#include "torch/base/group.h"
#include "torch/units/unit_handle.h"

namespace isthmus::torch_backend {

// Any thread may call any method. Its lock is the last one taken.
class UnitRegistry : public std::enable_shared_from_this<UnitRegistry> {
 public:
  // The group outlives the calls.
  explicit UnitRegistry(const Group& group)
      : group_(group),
        num_ranks_(group.size),
        tables_{UnitTable(group.options.max_units), UnitTable(group.options.max_units)} {}

  int num_ranks() const { return num_ranks_; }
  // The call that the calling thread makes of one of these units; null: it tells of none.
  const UnitCall* told() const { return told_call != nullptr && told_call->unit->is_of(*this) ? told_call : nullptr; }

  // Makes a unit, which lives as long as somebody holds it. counted: units of equal names are "name", "name (2)", in
  // the order in which they are made, whichever still live.
  UnitHandlePtr make(std::string name, uint64_t layout, std::optional<Reason> why_exact, std::string parameters,
                     bool counted);

  // The unit of a call that nobody tells of: at most options.max_units of each kind of device, which give way to
  // others; above that it is exact. What the policy leaves exact takes no place.
  UnitPtr of_untold_call(UnitKey key, std::optional<Reason> why_exact, bool on_gpu);

  // A unit of the core, with the state that a checkpoint brought for it.
  UnitPtr make_unit(const UnitKey& key, std::optional<Reason> why_exact);
  // Keeps the state until the unit with its key is reduced. Throws Error if it does not fit the group.
  void load(UnitState state);

  // Handles that somebody holds.
  std::vector<UnitHandlePtr> handles() const;
  // Of the handles; nothing: of all, and of untold calls.
  std::vector<UnitPtr> units_of(const std::optional<std::vector<UnitHandlePtr>>& handles) const;
  // What was loaded and not reduced yet.
  std::vector<UnitState> loaded() const;
  void scale_loaded(double factor, const std::optional<std::vector<UnitHandlePtr>>& handles);
  // Drops their states, those of reductions.
  void clear(const std::optional<std::vector<UnitHandlePtr>>& handles);

 private:
  const Group& group_;
  const int num_ranks_;
  mutable std::mutex mutex_;         // guards what follows
  std::array<UnitTable, 2> tables_;  // of untold calls, on the CPU and on GPUs
  std::map<UnitKey, UnitState> loaded_;
  mutable std::vector<std::weak_ptr<UnitHandle>> handles_;
  std::map<std::string, int> counts_;  // how many units were ever made, by a name that is counted
};

}  // namespace isthmus::torch_backend
