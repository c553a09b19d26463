// The residuals and steps of units.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "communicator/run/statistics.h"
#include "communicator/run/tier_set.h"
#include "communicator/units/residual_parts.h"
#include "isthmus/device.h"
#include "isthmus/options.h"
#include "isthmus/unit.h"

namespace isthmus {

class TagcFlat;

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
inline Lane lane_of(PacketUse use) { return use == PacketUse::kPiece ? Lane::kEncode : Lane::kDecode; }
inline PacketContext context_of(uint64_t unit_hash, uint64_t step, PacketUse use) {
  return {use >= PacketUse::kResult ? ~unit_hash : unit_hash, step};
}

// What undo_step() restores.
struct KeptUnit : Residuals {
  uint64_t step = 0;
};

struct Unit : Residuals {
  std::optional<KeptUnit> kept;  // nothing: the unit is new since begin_step(), or there was none
  uint64_t hash = 0;             // of `key`
  uint64_t last_use = 0;         // see UnitTable::find_or_add
  bool is_forgotten = false;     // its owner is gone, on this rank
  uint64_t step = 0;             // of the next reduction, equal on all ranks. On a GPU the true value is in `contexts`
  std::shared_ptr<DeviceContext> contexts;
  // How its packets are made; decided again at the end of its dense start (dense_steps), on all ranks alike.
  std::optional<bool> is_dense;  // nothing: not decided yet
  const Options* settings = nullptr;
  Codecs codecs;
  std::shared_ptr<SquaredError> error;  // the error of lossy codecs in measured reductions

  // Rescales the residual so that scale * residual keeps its value.
  void follow_scale(Device& device, double new_scale);
  bool has_residual() const { return pieces.values.num_elements > 0; }
  bool has_parked() const { return !pieces.parked.empty() || !result.parked.empty(); }
};

// Returns which of a rank's flags are set on all ranks, which call it together. Empty: they cannot now.
using SetOnAllRanks = std::function<std::vector<uint8_t>(const std::vector<uint8_t>& flags)>;

// The units of one rank's communicator: at most options.max_units. A new unit takes the place of one that was not
// reduced for long. Residuals are always finite.
class UnitTable final : public UnitStates {
 public:
  // All arguments outlive it.
  UnitTable(const TierSet& tiers, Device& device, const Options& options, Statistics& statistics)
      : tiers_(tiers),
        device_(device),
        options_(options),
        statistics_(statistics),
        residual_bytes_(statistics.memory.residual_bytes) {}

  // The number of the group's next reduction, equal on all ranks.
  uint64_t now() const { return now_; }
  void count_reduction() { ++now_; }

  // The state of `key`; null if there is none yet.
  const Unit* find(const UnitKey& key) const;
  bool full() const { return size() >= options_.max_units; }

  // The state of `key` for the next reduction. The first call makes it, without residuals. A unit that its owner
  // reduces under another name takes the new name. In a full table a new unit replaces the one that was not reduced for
  // longest, if more than 2 max_units reductions have passed since; else those go that all ranks have forgotten, by
  // `on_all`, which ranks ask alike. If none has, it returns null, and does not ask again for so long. The pointer
  // stays valid until the unit is loaded or cleared.
  Unit* find_or_add(const UnitKey& key, const SetOnAllRanks& on_all = {});
  // The state of `key`, if it has residuals; else null.
  Unit* find_with_residual(const UnitKey& key);

  // Assigns the unit's residuals to the parameters that `key` reduces. They move by parameter where sections are known.
  // Without `needs_residual` they move only if something is parked; with it a unit without residuals gets some of
  // zeros. All this is work of the lanes that use them. Throws Error that names unit and bytes if memory is lacking.
  void follow_key(Unit& unit, const UnitKey& key, bool needs_residual);
  // Frees the residuals, once no later work uses them. Parked residuals stay.
  void drop_residuals(Unit& unit);

  std::vector<UnitState> states() const override;
  void load(const UnitState& state) override;
  void clear(const Owners& owners) override;
  void forget(const std::set<uint64_t>& owners) override;
  void scale_residuals(double factor, const Owners& owners) override;
  void begin_step(std::optional<uint64_t> step, const Owners& owners) override;
  int64_t undo_step(const Owners& owners) override;
  int64_t skip_step(const Owners& owners) override;
  void count_dropped(int64_t num_units) override { statistics_.add(&Stats::dropped_residuals, num_units); }

 private:
  using Units = std::map<UnitKey, Unit>;  // by identity

  int64_t size() const { return static_cast<int64_t>(units_.size()); }
  ResidualSizes sizes_of(const UnitKey& key) const { return residual_sizes(tiers_, options_.is_flat(), key); }
  // The unit that the same owner reduced under another name; end() if there is none.
  Units::iterator renamed(const UnitKey& key);
  bool make_room(const SetOnAllRanks& on_all);
  Unit& used(Unit& unit, const UnitKey& key);
  void make_residuals(Unit& unit, const UnitKey& key);
  void move_residuals(Unit& unit, const UnitKey& key, bool needs_residual);

  const TierSet& tiers_;
  Device& device_;
  const Options& options_;
  Statistics& statistics_;
  std::atomic<int64_t>& residual_bytes_;
  uint64_t now_ = 0;
  uint64_t first_step_ = 0;  // of new units
  uint64_t full_until_ = 0;  // the table stays full before this reduction: no unit can be replaced
  Units units_;
};

}  // namespace isthmus
