// The state that belongs to units: residuals and steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "communicator/units/residual_parts.h"
#include "isthmus/device.h"
#include "isthmus/options.h"
#include "isthmus/unit.h"

namespace isthmus {

class TagcFlat;

// How many elements the residuals of one unit have on this rank.
struct ResidualSizes {
  int64_t residual_elements = 0;
  int64_t result_residual_elements = 0;
};

// The codecs of a unit. The communicator owns them.
struct UnitCodecs {
  Codec* pieces = nullptr;
  Codec* result = nullptr;   // of an all-reduce
  TagcFlat* flat = nullptr;  // tiers=flat: null where it is exact
};

// The uses of a unit's packets. Each use counts its steps, since a packet may be encoded before the previous step's is
// decoded. A packet of a result is never mistaken for one of a piece.
enum class PacketUse : uint8_t { kPiece, kArrivedPiece, kResult, kArrivedResult };
inline constexpr int kNumPacketUses = 4;
inline Lane lane_of(PacketUse use) { return use == PacketUse::kPiece ? Lane::kEncode : Lane::kDecode; }
inline bool is_of_result(PacketUse use) { return use >= PacketUse::kResult; }
inline PacketContext context_of(uint64_t unit_hash, uint64_t step, PacketUse use) {
  return {is_of_result(use) ? ~unit_hash : unit_hash, step};
}

// One for each use, in the memory of `device`; null on the CPU.
std::shared_ptr<DeviceContext> make_contexts(Device& device);

struct Unit {
  UnitKey key;             // of the last reduction
  uint64_t hash = 0;       // of `key`
  uint64_t last_use = 0;   // see UnitTable::find_or_add
  uint64_t step = 0;       // reductions so far; equal on all ranks. On a GPU `contexts` hold the true value
  double scale = 0;        // of the last of them; 0: none yet
  Buffer residual;         // float32; empty if the codec keeps none. Lane kEncode
  Buffer result_residual;  // float32; of the own chunk of an all-reduce's result; empty for others. Lane kDecode
  DeviceMemory residual_memory;
  DeviceMemory result_residual_memory;
  // What is left of parameters that the last reduction had no gradient of. See ParkedState.
  std::vector<ParkedPart> parked;
  std::vector<ParkedPart> parked_of_result;
  std::shared_ptr<DeviceContext> contexts;
  // How its packets are made; decided again at the end of its dense start (dense_steps), on all ranks alike.
  std::optional<bool> is_dense;  // nothing: not decided yet
  Options settings;
  UnitCodecs codecs;
  std::shared_ptr<SquaredError> error;  // that its lossy codecs made, where it was measured

  // Rescales the residual so that scale * residual stays as it was.
  void follow_scale(Device& device, double new_scale);
  void scale_residuals(Device& device, double factor);
  bool has_residual() const { return residual.num_elements > 0; }
  bool has_parked() const { return !parked.empty() || !parked_of_result.empty(); }
  int64_t residual_bytes() const;  // that have memory
};

// At most `max_units` units. One that was not reduced for long gives up its place to a new one. Residuals are finite,
// always. Not thread-safe. The device outlives it.
class UnitTable {
 public:
  UnitTable(Device& device, int64_t max_units) : device_(&device), max_units_(max_units) {}

  // The state of `key`; null if there is none yet.
  const Unit* find(const UnitKey& key) const;
  bool full() const { return size() >= max_units_; }

  // The state of `key` for reduction number `now` of the group, equal on all ranks; made without residuals when first
  // asked for. A unit that its owner reduced under another name takes the new one. Where the table is full, a new unit
  // takes the place of the one that was not reduced for longest, if that is more than 2 max_units reductions; null if
  // there is none. The pointer stays valid until the unit is loaded or cleared.
  Unit* find_or_add(const UnitKey& key, uint64_t now);
  // The state of `key`, if it has residuals; else null.
  Unit* find_with_residual(const UnitKey& key, uint64_t now);

  // What a unit keeps is now of what `key` reduces. Residuals move by parameter, where sections are known: stretches of
  // the reduction before, and of this one. Without `needs_residual` only if something of it is parked. For lanes.
  void follow_key(Unit& unit, const UnitKey& key, const ResidualStretches& before, const ResidualStretches& now,
                  ResidualSizes sizes, bool needs_residual);
  // Adds residuals of zeros to a unit without any, for the lanes that use them. Throws Error that names unit and bytes
  // if memory for them is lacking.
  void add_residuals(Unit& unit, const UnitKey& key, ResidualSizes sizes);
  // Call once no later work uses the residuals. What is parked stays.
  void drop_residuals(Unit& unit);

  // Puts a copy of `state`, whose residuals are in the host's memory, in the place of the unit of its key. Throws Error
  // if its residuals are neither empty nor of `sizes`, or hold NaN or Inf, or if the unit is new and the table is full;
  // the table is then as before.
  void load(const UnitState& state, ResidualSizes sizes, uint64_t now);

  std::vector<UnitState> states() const;  // by key; waits for the device
  void scale_residuals(double factor, const Owners& owners);
  void clear(const Owners& owners);
  // See UnitStates.
  void forget(const std::set<uint64_t>& owners);

  int64_t size() const { return static_cast<int64_t>(units_.size()); }
  int64_t residual_bytes() const { return residual_bytes_; }
  // Residuals that went with a unit whose place another one took.
  int64_t num_dropped() const { return num_dropped_; }

 private:
  using Units = std::map<UnitKey, Unit>;  // by identity

  // Under another name, of the same owner; end() if there is none.
  Units::iterator renamed(const UnitKey& key);
  bool make_room(uint64_t now);
  Unit& used(Unit& unit, const UnitKey& key, uint64_t now);

  Device* device_;
  int64_t max_units_;
  int64_t residual_bytes_ = 0;
  int64_t num_dropped_ = 0;
  uint64_t full_until_ = 0;  // no unit gives up its place before
  Units units_;
};

}  // namespace isthmus
