// Gathers a unit's weights: bit-exact differences to what crossed before, then whole within the node. See
// docs/weights.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/rounding.h"
#include "communicator/path/path.h"
#include "communicator/run/run.h"
#include "communicator/run/tier_set.h"
#include "communicator/units/unit.h"
#include "isthmus/communicator.h"
#include "isthmus/options.h"
#include "kernels/weights/weight_coder.h"

namespace isthmus {

// What the ranks of a rail last sent each other of one unit's weights: their shards, by node.
struct Replica {
  explicit Replica(std::shared_ptr<MemoryUse> of_communicator) : use(std::move(of_communicator)) {}
  // Its type was known when its memory was made.
  ~Replica() { use->replica_bytes -= words().bytes(); }  // NOLINT(bugprone-exception-escape)
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  const std::shared_ptr<MemoryUse> use;
  uint64_t gathers = 0;   // so far; equal on all ranks
  Buffer shards;          // of all nodes, in the gathered type; zeros fill them up to a multiple of 8 bytes
  bool is_valid = false;  // whether the peers have the same
  DeviceMemory memory;
  EventPtr last_use;  // passes when the last gather is done with it; null on the CPU, and before the first one

  // The shards with the zeros behind them, as checksum_of() takes them.
  ConstBuffer words() const { return {shards.data, round_up(shards.bytes(), 8), DataType::kByte}; }
};

// What a gather of weights is about, and what its first half leaves to the second.
struct GatherUnderWay {
  GatherUnderWay(ConstBuffer shard_, Buffer gathered_, UnitPtr unit_)
      : shard(shard_), gathered(gathered_), unit(std::move(unit_)) {}

  const ConstBuffer shard;
  const Buffer gathered;
  const UnitPtr unit;
  std::optional<Run> run;  // nothing: the gather is over

  uint64_t number = 0;              // of the unit's gathers so far
  Buffer sent;                      // header and packet of this rank
  Buffer headers;                   // of all nodes
  void* headers_on_host = nullptr;  // null: there is no second half
  bool is_over() const { return headers_on_host == nullptr; }
};

// The thread that calls collectives uses it.
class WeightPath {
 public:
  // throw_if_aborted: throws TransportError once the communicator is aborted. All arguments outlive this object.
  WeightPath(const TierSet& tiers, const Options& options, Device& device, const Path& path,
             std::function<void()> throw_if_aborted);
  ~WeightPath();

  // The first half: compares and encodes, and exchanges headers. Where there is no second half it gathers.
  void begin(const std::shared_ptr<GatherUnderWay>& gather);
  // Waits until the host has the headers, which it has when this event passes. Any thread may call it.
  void wait_for_headers(const EventPtr& begun) const;
  // The second half, once the host has the headers: updates the replica to the shards that the ranks of the rail had at
  // begin(), and gathers them within the node. Throws PacketError on every rank of the rail if their headers do not
  // fit together.
  void finish(GatherUnderWay& gather);

 private:
  void give_replica(Unit& unit, int64_t num_elements);
  void encode(GatherUnderWay& gather);
  void exchange_headers(GatherUnderWay& gather);
  void cross(GatherUnderWay& gather, const std::vector<WeightHeader>& headers);
  // Why the shards cross whole; nothing: their differences cross. All ranks decide alike.
  std::optional<Reason> why_whole(Run& run, const std::vector<WeightHeader>& headers) const;
  void gather_whole(Run& run, ConstBuffer shard, const Replica& replica) const;
  void gather_packets(GatherUnderWay& gather, const std::vector<WeightHeader>& headers);
  void release_abandoned();

  const TierSet& tiers_;
  const Options& options_;
  Device& device_;
  const Path& path_;
  const std::function<void()> throw_if_aborted_;
  const std::unique_ptr<WeightCoder> coder_;
  std::vector<std::shared_ptr<GatherUnderWay>> under_way_;  // between their halves
  std::vector<void*> free_headers_;                         // room for headers on the host that no gather uses
};

}  // namespace isthmus
