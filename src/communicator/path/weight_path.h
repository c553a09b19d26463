// Gathers a unit's weights: bit-exact differences to what crossed before, then whole within the node. See
// docs/weights.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codec/weights/weight_coder.h"
#include "communicator/path/two_tier_path.h"
#include "communicator/run/run.h"
#include "communicator/run/tier_set.h"
#include "communicator/units/weight_replicas.h"
#include "isthmus/communicator.h"
#include "isthmus/options.h"

namespace isthmus {

struct GatherUnderWay final : WeightGather {
  GatherUnderWay(ConstBuffer shard_, Buffer gathered_, UnitKey unit_)
      : shard(shard_), gathered(gathered_), unit(std::move(unit_)) {}

  const ConstBuffer shard;
  const Buffer gathered;
  const UnitKey unit;
  std::optional<Run> run;  // nothing: the gather is over
  EventPtr done;           // of the whole gather, once it is over

  // What begin() leaves to finish().
  std::shared_ptr<Replica> replica;
  uint64_t number = 0;              // of the unit's gathers so far
  Buffer sent;                      // header and packet of this rank
  Buffer headers;                   // of all nodes
  void* headers_on_host = nullptr;  // null: there is no second half
};

// The thread that calls collectives uses it.
class WeightPath {
 public:
  // throw_if_aborted: throws TransportError once the communicator is aborted. All arguments outlive this object.
  WeightPath(const TierSet& tiers, const Options& options, Device& device, const TwoTierPath& path,
             std::function<void()> throw_if_aborted);
  ~WeightPath();

  // The first half: compares and encodes, and exchanges headers. Where there is no second half it gathers.
  void begin(const std::shared_ptr<GatherUnderWay>& gather);
  // Waits until the host has the headers. Any thread may call it.
  void wait_for_headers(const GatherUnderWay& gather) const;
  // The second half, once the host has the headers: updates the replica to the shards that the ranks of the rail had at
  // begin(), and gathers them within the node. Throws PacketError on every rank of the rail if their headers do not
  // fit together.
  void finish(GatherUnderWay& gather);

  void drop(const std::string& unit) { replicas_.drop(unit); }
  int64_t replica_bytes() const { return replicas_.bytes(); }

 private:
  void gather_whole_in_graph(GatherUnderWay& gather) const;
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
  const TwoTierPath& path_;
  const std::function<void()> throw_if_aborted_;
  const std::unique_ptr<WeightCoder> coder_;
  WeightReplicas replicas_;
  std::vector<std::shared_ptr<GatherUnderWay>> under_way_;  // between their halves
  std::vector<void*> free_headers_;                         // room for headers on the host that no gather uses
};

}  // namespace isthmus
