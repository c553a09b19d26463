// Units, which reduce gradients, and their state. See docs/algorithms.md, "Units".
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/reason.h"
#include "isthmus/stats.h"

namespace isthmus {

// The part of a parameter that lies in one row of a reduced tensor.
struct Section {
  int64_t parameter = 0;  // its place in the unit
  int64_t num_elements = 0;
  bool operator==(const Section&) const = default;
};

// The parameters that have gradients in a reduction, in the order of their elements in each row. A reduce-scatter has
// one row for each rank, an all-reduce has one row. Immutable.
class Sections {
 public:
  explicit Sections(std::vector<Section> sections);

  const std::vector<Section>& all() const { return sections_; }
  int64_t row_elements() const { return row_elements_; }
  uint64_t hash() const { return hash_; }  // stable over processes, and never 0

 private:
  std::vector<Section> sections_;
  int64_t row_elements_ = 0;
  uint64_t hash_ = 0;
};

// Identifies what issues one gradient reduction in each step. All members but `owner` are equal on all ranks.
struct UnitKey {
  std::string name;          // for people and for the policy
  int64_t num_elements = 0;  // of the whole input: another size makes another unit
  DataType dtype = DataType::kFloat32;
  Collective collective = Collective::kReduceScatter;  // a unit's all-reduce has state of its own
  uint64_t layout = 0;  // hash of the parameters that the elements belong to, in order; 0: unknown
  // False: the next reduction with this key may have other parameters, which must not get this one's residual. Codecs
  // that keep a residual are then not used (kWhoseResidual).
  bool may_keep_residual = true;
  // Set where the parameters are known: all reductions with this name, type and collective then belong to one unit,
  // whichever parameters have gradients; residuals are kept by parameter, and `layout` is the sections' hash. Null:
  // another layout makes another unit.
  std::shared_ptr<const Sections> sections = nullptr;
  // The object that reduces: a number that this process never gives twice; 0: unknown. Not part of the key.
  uint64_t owner = 0;

  uint64_t hash() const;  // stable over processes, restarts and machines
  // The key of the unit: the same for all sections that the unit is reduced with.
  UnitKey identity() const;

  auto tied() const { return std::tie(name, num_elements, dtype, collective, layout, may_keep_residual); }
  bool operator==(const UnitKey& other) const { return tied() == other.tied(); }
  auto operator<=>(const UnitKey& other) const { return tied() <=> other.tied(); }
};

// One reduction. The unit's collective, num_elements and dtype are equal to those of the call.
struct Reduction {
  UnitKey unit;
  double scale = 1;                      // of the sum over ranks
  std::optional<Reason> why_exact = {};  // why it must stay exact; nothing: it need not
};

// The owners whose units are meant; nothing: all units.
using Owners = std::optional<std::set<uint64_t>>;
inline bool includes(const Owners& owners, uint64_t owner) { return !owners || owners->contains(owner); }

// A stretch of residual for a parameter that had no gradient in the unit's last reduction, or that this rank did not
// send there.
struct ParkedState {
  bool of_result = false;  // whether it belongs to `result_residual` instead of `residual`
  int64_t piece = 0;       // of a reduce-scatter: which of the residual's chunks held it, by place; else 0
  int64_t parameter = 0;   // its place in the unit
  int64_t begin = 0;       // the first element, in the parameter's section
  ConstBuffer values;
};

// What a checkpoint holds for one unit on one rank.
struct UnitState {
  UnitKey key;        // of the last reduction
  uint64_t step = 0;  // reductions so far; equal on all ranks
  double scale = 0;  // of the last reduction: scale * residual is what the residual will add to the result; 0: none yet
  // What the codec has not sent yet: float32, in the device's memory (in the host's for load()). With two tiers it has
  // a chunk for each other node, by node: that of the node's rank with this rank's local index. With tiers=flat it has
  // all elements. Chunk r is [r C, (r+1) C), where C is num_elements / world size, rounded up. In an all-reduce's last
  // chunks what lies past num_elements is zero.
  ConstBuffer residual;
  // All-reduce only: what was not sent of this rank's chunk of the result, in units of the result (already scaled).
  ConstBuffer result_residual;
  std::vector<ParkedState> parked = {};  // in no order
};

// The state of the units of one rank's communicator. It sends nothing. The thread that calls collectives calls it,
// between them.
class UnitStates {
 public:
  virtual ~UnitStates() = default;

  // All states, by key. The views into device memory are valid until the next call of a method that is not const. Waits
  // for the device.
  virtual std::vector<UnitState> states() const = 0;
  // Copies `state` into the unit with its key. An empty residual stands for zeros. Throws Error, and changes nothing,
  // if the state does not fit the group and its options, or if a new unit would exceed max_units.
  virtual void load(const UnitState& state) = 0;
  virtual void clear(const Owners& owners = {}) = 0;
  // Frees the memory of these owners' residuals, because nothing will reduce their units again. A unit keeps its place
  // until another one needs it, which all ranks decide alike. Each rank may call it by itself.
  virtual void forget(const std::set<uint64_t>& owners) = 0;
  // Multiplies residuals by `factor` (finite and above 0), by which later gradients are larger than earlier ones.
  virtual void scale_residuals(double factor, const Owners& owners = {}) = 0;
  // Begins a step of these owners' units that may be undone. Residuals are copied for that, in as much memory again. On
  // a GPU the copies are work of the lanes that use residuals. With `step` units, new ones too, count their reductions
  // from it on. It is equal on all ranks and seeds the codecs: a rank that joined a moment ago then sends and expects
  // what the others do. Its low kStepBits bits count steps for dense_steps and error_interval.
  static constexpr int kStepBits = 40;
  virtual void begin_step(std::optional<uint64_t> step, const Owners& owners = {}) = 0;
  // Restores the residuals, scales and steps that these units had at begin_step(). Those that are new since then, or
  // never began a step, lose their residuals; returns how many had some.
  virtual int64_t undo_step(const Owners& owners = {}) = 0;
  // undo_step() of a step whose result was thrown away, which Stats::skipped_steps counts.
  virtual int64_t skip_step(const Owners& owners = {}) = 0;
  // Adds to Stats::dropped_residuals the residuals that were dropped before they came here.
  virtual void count_dropped(int64_t num_units) = 0;
};

}  // namespace isthmus
