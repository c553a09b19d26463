// Units, which reduce gradients, and their state. See docs/algorithms.md, "Units".
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/stats.h"

namespace isthmus {

// Why a reduction is exact whose UnitKey says may_keep_residual = false.
inline constexpr const char* kWhoseResidual = "unknown parameters, and the codec keeps a residual";

// A parameter's part of a row of a reduced tensor.
struct Section {
  int64_t parameter = 0;  // its place in the unit
  int64_t num_elements = 0;
  bool operator==(const Section&) const = default;
};

// The parameters that have gradients in a reduction, in the order of their elements in each row. A reduce-scatter has a
// row for each rank, an all-reduce has one. Constant.
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

// Whatever issues one gradient reduction in each step. Equal on all ranks, but for `owner`.
struct UnitKey {
  std::string name;          // for people and for the policy
  int64_t num_elements = 0;  // of the whole input: another size is another unit
  DataType dtype = DataType::kFloat32;
  Collective collective = Collective::kReduceScatter;  // a unit's all-reduce has state of its own
  uint64_t layout = 0;  // hash of the parameters that the elements belong to, in order; 0: unknown
  // False: the next reduction of this key may be of other parameters, which must not get this one's residual. Codecs
  // that keep one are not used then.
  bool may_keep_residual = true;
  // Where they are known, all reductions of this name, type and collective are of one unit, whichever of its parameters
  // have gradients, and residuals are kept by parameter. `layout` is their hash. Null: another layout is another unit.
  std::shared_ptr<const Sections> sections = nullptr;
  // What reduces: a number of this process that is never given again; 0: unknown. No part of the key.
  uint64_t owner = 0;

  uint64_t hash() const;  // stable over processes, restarts and machines
  // The key of the unit that this is a reduction of: the same for all of its sections.
  UnitKey identity() const;

  auto tied() const { return std::tie(name, num_elements, dtype, collective, layout, may_keep_residual); }
  bool operator==(const UnitKey& other) const { return tied() == other.tied(); }
  auto operator<=>(const UnitKey& other) const { return tied() <=> other.tied(); }
};

// One reduction. A unit's collective, num_elements and dtype are those of the call.
struct Reduction {
  UnitKey unit;
  double scale = 1;                 // of the sum over ranks
  const char* why_exact = nullptr;  // why it must stay exact, a string literal; null: it need not
};

// Whose units are meant; nothing: all.
using Owners = std::optional<std::set<uint64_t>>;
inline bool includes(const Owners& owners, uint64_t owner) { return !owners || owners->contains(owner); }

// A stretch of what is left of a parameter that has no gradient in the unit's last reduction, or that this rank does
// not send there.
struct ParkedState {
  bool of_result = false;  // as `result_residual`, else as `residual`
  int64_t piece = 0;       // of a reduce-scatter: the place of its owner among those of the residual's chunks; else 0
  int64_t parameter = 0;   // its place in the unit
  int64_t begin = 0;       // the first element, in the parameter's section
  ConstBuffer values;
};

// What a checkpoint holds of one unit on one rank.
struct UnitState {
  UnitKey key;        // of the last reduction
  uint64_t step = 0;  // reductions so far; equal on all ranks
  double scale = 0;   // of the last: scale * residual is what the residual will add to the result; 0: none yet
  // What the codec has not sent yet, float32, in the device's memory (to be loaded: in the host's). Two tiers: for each
  // other node, by node, the chunk of its rank with this rank's local index; flat: all elements. Chunk r is
  // [r C, (r+1) C), where C is num_elements / world size, rounded up; what an all-reduce's last chunks have past
  // num_elements is zero.
  ConstBuffer residual;
  // All-reduce only: the same for this rank's chunk of the result, in units of the result (already scaled).
  ConstBuffer result_residual;
  std::vector<ParkedState> parked = {};  // in no order
};

// The state of the units of one rank's communicator. Nothing here sends anything. Called between collectives, by the
// thread that calls those.
class UnitStates {
 public:
  virtual ~UnitStates() = default;

  // By key. Views that are valid until the next call of a method that is not const, of the device's memory. Waits for
  // the device.
  virtual std::vector<UnitState> states() const = 0;
  // Replaces the state of the unit of that key by a copy of `state`. An empty residual is one of zeros. Throws Error,
  // and changes nothing, if it does not fit the group and its options, or if there are max_units units already.
  virtual void load(const UnitState& state) = 0;
  virtual void clear(const Owners& owners = {}) = 0;
  // The owners are gone: nothing will reduce their units again. Frees the memory of residuals. A unit keeps its place
  // until another one needs it, which all ranks decide alike. Concerns this rank alone.
  virtual void forget(const std::set<uint64_t>& owners) = 0;
  // Multiplies residuals, where later gradients are larger by `factor` (finite and above 0) than earlier ones.
  virtual void scale_residuals(double factor, const Owners& owners = {}) = 0;
  // At the end of a step: whether its result was used, or thrown away. A step that is thrown away is counted in
  // Stats::skipped_steps, and what lossy codecs sent since the last call of these two in skipped_elements.
  virtual void count_step(const Owners& owners = {}) = 0;
  virtual void count_skipped_step(const Owners& owners = {}) = 0;
  // Counts residuals that were dropped before they came here: Stats::dropped_residuals.
  virtual void count_dropped(int64_t num_units) = 0;
};

}  // namespace isthmus
