// The state that belongs to units: residuals and steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "isthmus/device.h"
#include "isthmus/options.h"
#include "isthmus/unit.h"

namespace isthmus {

class TagcFlat;
struct UnitChoice;

// How many elements the residuals of one unit have on this rank.
struct ResidualSizes {
  int64_t residual_elements = 0;
  int64_t result_residual_elements = 0;
};

// What makes the packets of a unit. The communicator owns them.
struct UnitCodecs {
  Codec* pieces = nullptr;
  Codec* result = nullptr;   // of an all-reduce
  TagcFlat* flat = nullptr;  // tiers=flat: null where it is exact
};

// What packets of a unit are encoded or decoded for. Each use counts its steps: a packet may be encoded before that of
// the step before is decoded. A packet of a result is never taken for one of a piece.
enum class PacketUse : uint8_t { kPiece, kArrivedPiece, kResult, kArrivedResult };
inline constexpr int kNumPacketUses = 4;
inline Lane lane_of(PacketUse use) { return use == PacketUse::kPiece ? Lane::kEncode : Lane::kDecode; }
inline bool is_of_result(PacketUse use) { return use >= PacketUse::kResult; }
inline PacketContext context_of(uint64_t unit_hash, uint64_t step, PacketUse use) {
  return {is_of_result(use) ? ~unit_hash : unit_hash, step};
}

// One for each use, in the memory of `device`; null on the CPU.
std::shared_ptr<kernels::DeviceContext> make_contexts(Device& device);

struct Unit {
  uint64_t hash = 0;
  uint64_t step = 0;       // reductions so far; equal on all ranks. On a GPU `contexts` know better
  double scale = 0;        // of the last of them; 0: none yet
  Buffer residual;         // float32; empty if the codec keeps none. Lane kEncode
  Buffer result_residual;  // float32; of the own chunk of an all-reduce's result; empty for others. Lane kDecode
  DeviceMemory residual_memory;
  DeviceMemory result_residual_memory;
  std::shared_ptr<kernels::DeviceContext> contexts;
  // How its packets are made; decided anew where `stage` (schedule.h) changes, on all ranks alike.
  std::optional<int> stage;
  Options settings;
  UnitCodecs codecs;
  std::shared_ptr<UnitChoice> choice;   // if the communicator chooses, else null
  std::shared_ptr<SquaredError> error;  // of what its lossy codecs dropped, where that was measured

  // Keeps scale * residual as it was: what was held back under another scale counts as much as before.
  void follow_scale(Device& device, double new_scale);
  void scale_residuals(Device& device, double factor);
  bool has_residual() const { return residual.num_elements > 0; }
  int64_t residual_bytes() const { return residual.bytes() + result_residual.bytes(); }
};

// At most `max_units` units; none is evicted. Residuals are finite, always. Not thread-safe. The device outlives it.
class UnitTable {
 public:
  UnitTable(Device& device, int64_t max_units) : device_(&device), max_units_(max_units) {}

  // The state of `key`; null if there is none yet.
  const Unit* find(const UnitKey& key) const;
  bool full() const { return size() >= max_units_; }

  // The state of `key`; made without residuals when first asked for. Null if it is new and the table is full. The
  // pointer stays valid until the unit is loaded or cleared.
  Unit* find_or_add(const UnitKey& key);

  // Gives a unit that has none residuals of zeros, for the lanes that use them. Throws Error that names unit and bytes
  // if there is no memory for them.
  void add_residuals(Unit& unit, const UnitKey& key, ResidualSizes sizes);
  // Once nothing that will be enqueued uses them.
  void drop_residuals(Unit& unit);

  // Puts a copy of `state`, whose residuals are in the host's memory, in the place of the unit of its key. Throws Error
  // if its residuals are neither empty nor of `sizes`, or hold NaN or Inf, or if the unit is new and the table is full;
  // the table is then as before.
  void load(const UnitState& state, ResidualSizes sizes);

  std::vector<UnitState> states() const;  // by key; waits for the device
  void scale_residuals(double factor);
  void clear();

  int64_t size() const { return static_cast<int64_t>(units_.size()); }
  int64_t residual_bytes() const { return residual_bytes_; }

 private:
  Device* device_;
  int64_t max_units_;
  int64_t residual_bytes_ = 0;
  std::map<UnitKey, Unit> units_;
};

}  // namespace isthmus
