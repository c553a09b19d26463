// A unit: what its holders keep alive, and what its collectives keep in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "communicator/run/statistics.h"
#include "isthmus/device.h"
#include "isthmus/options.h"
#include "isthmus/unit.h"

namespace isthmus {

class TagcFlat;
struct Replica;

// The codecs of a reduction, which the planner owns.
struct Codecs {
  Codec* pieces = nullptr;
  Codec* result = nullptr;   // for the result of an all-reduce
  TagcFlat* flat = nullptr;  // tiers=flat; null: plain
};

// What a unit's packets are used for. Each use counts its own steps, because a packet may be encoded before the
// previous step's packet is decoded. The use also keeps packets of results and of pieces apart.
enum class PacketUse : uint8_t { kPiece, kArrivedPiece, kResult, kArrivedResult };
inline constexpr int kNumPacketUses = 4;
inline Lane lane_of(PacketUse use) {
  constexpr Lane kLanes[kNumPacketUses] = {Lane::kEncode, Lane::kDecode, Lane::kDecode, Lane::kGatherIntra};
  return kLanes[static_cast<int>(use)];
}
inline PacketContext context_of(uint64_t unit_hash, uint64_t step, PacketUse use) {
  return {use >= PacketUse::kResult ? ~unit_hash : unit_hash, step};
}

// How many elements the input of a reduction has.
int64_t num_elements_of(const Reduction& reduction, int num_ranks);

// One of a unit's residuals.
struct Residual {
  Lane lane;                                         // the only one that uses it
  Buffer values = {};                                // float32; empty if the codec keeps none
  DeviceMemory memory = nullptr;                     // of `values`
  std::shared_ptr<Magnitudes> magnitudes = nullptr;  // of `values`, in the device's memory; made with them

  // Gives it values of zeros. They are written on its lane. Throws Error that names unit and bytes if memory is
  // lacking.
  void make(Device& device, const UnitKey& key, int64_t num_elements);
  // Copies on its lane, into the memory of an earlier copy where that fits. Throws std::bad_alloc.
  void copy_from(Device& device, const Residual& from);
  void multiply(Device& device, double factor) const;
};

// A unit's residuals.
struct Residuals {
  double scale = 0;  // of the last reduction; 0: none yet
  Residual pieces = {.lane = Lane::kEncode};
  Residual result = {.lane = Lane::kDecode};  // for the own chunk of an all-reduce's result; else empty

  int64_t residual_bytes() const { return pieces.values.bytes() + result.values.bytes(); }
  bool has_residual() const { return pieces.values.num_elements > 0; }
  void copy_from(Device& device, const Residuals& from);  // see Residual
  void multiply(Device& device, double factor) const;
};

// What undo_step() restores.
struct KeptStep : Residuals {
  uint64_t step = 0;
};

// The thread that calls collectives of the unit's communicator uses all but constants.
class Unit : public Residuals {
 public:
  Unit(UnitKey key_, std::optional<Reason> why_exact_);
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const UnitKey key;
  const uint64_t hash;                          // of `key`
  const std::optional<Reason> why_exact;        // its maker says so
  std::optional<UnitState> loaded;              // what a checkpoint brought, until its first collective
  std::atomic<bool> counts_as_dropped = false;  // a residual that it still has then

  // Since its first collective.
  std::shared_ptr<MemoryUse> memory;       // of the communicator that it belongs to
  std::shared_ptr<UnitRecord> record;      // its counters
  std::shared_ptr<Replica> replica;        // null until its weights are gathered
  std::optional<bool> is_dense;            // how its packets are made; decided again at the end of its dense start, on
                                           // all ranks alike. Nothing: not decided yet
  std::optional<Reason> why_always_exact;  // nothing: the codec may be lossy
  const Options* settings = nullptr;
  Codecs codecs;
  bool codec_keeps_residual = false;

  // Since its first lossy reduction.
  bool has_state = false;
  uint64_t packet_hash = 0;  // in packets of the last reduction: of the parameters that had gradients
  uint64_t step = 0;         // of the next reduction, equal on all ranks. On a GPU the true value is in `contexts`
  std::shared_ptr<DeviceContext> contexts;  // by PacketUse; on a GPU
  std::shared_ptr<SquaredError> error;      // the error of lossy codecs in measured reductions
  std::optional<KeptStep> kept;             // nothing: the unit is new since begin_step(), or there was none

  // Sets packet_hash and step. On a GPU they count from the next packets of each use on.
  void set_context(Device& device, uint64_t hash_of_packets, uint64_t step_of_next);
  // Rescales the residual so that scale * residual keeps its value.
  void follow_scale(Device& device, double new_scale);
  // Gives residuals of zeros; frees them, once no later work uses them.
  void make_residuals(Device& device, int64_t pieces_elements, int64_t result_elements);
  void drop_residuals();
};

}  // namespace isthmus
