// Units, which reduce gradients and gather weights, and their state. See docs/algorithms.md, "Units".
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
};

// Parameters in the order of their elements in each row of a tensor that is reduced. A reduce-scatter has one row for
// each rank, an all-reduce has one row. Immutable.
class Sections {
 public:
  explicit Sections(const std::vector<Section>& sections);

  int64_t row_elements() const { return row_elements_; }
  uint64_t hash() const { return hash_; }  // stable over processes, and never 0

 private:
  int64_t row_elements_ = 0;
  uint64_t hash_ = 0;
};

// What a unit is: equal on all ranks.
struct UnitKey {
  std::string name;          // for people and for the policy
  int64_t num_elements = 0;  // of the whole input, where all its parameters have gradients
  DataType dtype = DataType::kFloat32;
  Collective collective = Collective::kReduceScatter;
  uint64_t layout = 0;  // hash of the parameters that the elements belong to, in order; 0: unknown
  // False: the unit's next reduction may have other parameters, which must not get this one's residual. Codecs that
  // keep a residual are then not used (kWhoseResidual).
  bool may_keep_residual = true;

  uint64_t hash() const;  // stable over processes, restarts and machines

  auto tied() const { return std::tie(name, num_elements, dtype, collective, layout, may_keep_residual); }
  bool operator==(const UnitKey& other) const { return tied() == other.tied(); }
  auto operator<=>(const UnitKey& other) const { return tied() <=> other.tied(); }
};

// Whatever issues one gradient reduction in each step, or gathers its weights: an object that its caller holds. It owns
// step, residual, replica of weights, codec, and why it is exact, which are decided in its first collective. All of it
// is gone with the last holder; a collective that is under way is one. Any thread may hold it and let it go. One
// communicator alone reduces or gathers it.
class Unit;
using UnitPtr = std::shared_ptr<Unit>;

// why_exact: why its reductions must all stay exact; nothing: they need not. Sends and allocates nothing.
UnitPtr make_unit(UnitKey key, std::optional<Reason> why_exact = {});

// One reduction.
struct Reduction {
  UnitPtr unit;
  double scale = 1;                      // of the sum over ranks
  std::optional<Reason> why_exact = {};  // why this one must stay exact; nothing: it need not
  // The parameters that have gradients, where some of the unit's have none; null: all have. The input is then smaller.
  // A unit that has a residual is exact then, and its residual rests (kResidualRests).
  std::shared_ptr<const Sections> sections = nullptr;
  // On a GPU, a stream of the same device and capture whose present work makes the input. If it is given, the reduction
  // begins behind that work, and only what writes the result waits for the caller's stream: two reductions of one
  // caller then overlap. The caller leaves the input alone until the reduction's event passes.
  std::optional<Stream> input_stream = {};
};

// What a checkpoint holds for one unit on one rank. It owns its memory.
struct UnitState {
  UnitKey key;
  uint64_t step = 0;  // reductions so far; equal on all ranks
  double scale = 0;  // of the last reduction: scale * residual is what the residual will add to the result; 0: none yet
  // What the codec has not sent yet; empty: nothing. With two tiers it has a chunk for each other node, by node: that
  // of the node's rank with this rank's local index. With tiers=flat it has all elements. Chunk r is [r C, (r+1) C),
  // where C is num_elements / world size, rounded up. In an all-reduce's last chunks what lies past num_elements is
  // zero.
  std::vector<float> residual = {};
  // All-reduce only: what was not sent of this rank's chunk of the result, in units of the result (already scaled).
  std::vector<float> result_residual = {};
  // The core passes these on.
  bool is_held = false;         // by a model
  std::string parameters = {};  // of the layout, as text; "": unknown
};

// The units that are meant; nothing: all that the communicator has reduced and somebody holds.
using Units = std::optional<std::set<const Unit*>>;

// The state of the units of one rank's communicator. It sends nothing. The thread that calls collectives calls it,
// between them. Units that have had no lossy reduction have no state.
class UnitStates {
 public:
  virtual ~UnitStates() = default;

  // All states, by key. Waits for the device.
  virtual std::vector<UnitState> states() const = 0;
  // Makes a unit with this state. An empty residual stands for zeros. Throws Error if the state does not fit the group
  // and its options.
  virtual UnitPtr load(UnitState state) = 0;
  // Multiplies residuals by `factor` (finite and above 0), by which later gradients are larger than earlier ones.
  virtual void scale_residuals(double factor, const Units& units = {}) = 0;
  // Begins a step of these units that may be undone. Residuals are copied for that, in as much memory again. On a GPU
  // the copies are work of the lanes that use residuals. With `step` units, new ones too, count their reductions from
  // it on. It is equal on all ranks and seeds the codecs: a rank that joined a moment ago then sends and expects what
  // the others do. Its low kStepBits bits count steps for dense_steps and error_interval.
  static constexpr int kStepBits = 40;
  virtual void begin_step(std::optional<uint64_t> step, const Units& units = {}) = 0;
  // Restores the residuals, scales and steps that these units had at begin_step(). Those that are new since then, or
  // never began a step, lose their residuals; returns how many had some.
  virtual int64_t undo_step(const Units& units = {}) = 0;
  // undo_step() of a step whose result was thrown away, which Stats::skipped_steps counts.
  virtual int64_t skip_step(const Units& units = {}) = 0;
  // Adds to Stats::dropped_residuals the residuals that were dropped before they came here.
  virtual void count_dropped(int64_t num_units) = 0;
};

}  // namespace isthmus
