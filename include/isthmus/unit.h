// Units, which reduce gradients, and their state. See docs/algorithms.md, "Units".
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/stats.h"

namespace isthmus {

// Why a reduction is exact whose UnitKey says may_keep_residual = false.
inline constexpr const char* kWhoseResidual = "unknown parameters, and the codec keeps a residual";

// Whatever issues one gradient reduction in each step. Equal on all ranks.
struct UnitKey {
  std::string name;          // for people and for the policy
  int64_t num_elements = 0;  // of the whole input: another size is another unit
  DataType dtype = DataType::kFloat32;
  Collective collective = Collective::kReduceScatter;  // a unit's all-reduce has state of its own
  uint64_t layout = 0;  // hash of the parameters that the elements belong to, in order; 0: unknown
  // False: the next reduction of this key may be of other parameters, which must not get this one's residual. Codecs
  // that keep one are not used then.
  bool may_keep_residual = true;

  uint64_t hash() const;                             // stable over processes, restarts and machines
  auto operator<=>(const UnitKey&) const = default;  // NOLINT(modernize-use-nullptr): taken for a 0 in clang-tidy 14
};

// What a checkpoint holds of one unit on one rank.
struct UnitState {
  UnitKey key;
  uint64_t step = 0;  // reductions so far; equal on all ranks
  double scale = 0;   // of the last: scale * residual is what the residual will add to the result; 0: none yet
  // What the codec has not sent yet, float32, in the device's memory (to be loaded: in the host's). Two tiers: for each
  // other node (own_piece=coded: each node), by node, the chunk of its rank with this rank's local index; flat: all
  // elements. Chunk r is [r C, (r+1) C), where C is num_elements / world size, rounded up; what an all-reduce's last
  // chunks have past num_elements is zero.
  ConstBuffer residual;
  // All-reduce only: the same for this rank's chunk of the result, in units of the result (already scaled).
  ConstBuffer result_residual;
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
  virtual void clear() = 0;
  // Multiplies all residuals, where later gradients are larger by `factor` (finite and above 0) than earlier ones.
  virtual void scale_residuals(double factor) = 0;
  // At the end of a step: whether its result was used, or thrown away. A step that is thrown away is counted in
  // Stats::skipped_steps, and what lossy codecs sent since the last call of these two in skipped_elements.
  virtual void count_step() = 0;
  virtual void count_skipped_step() = 0;
};

}  // namespace isthmus
