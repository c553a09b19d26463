// What the ranks of a rail last sent each other of their weights.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "isthmus/device.h"
#include "isthmus/unit.h"

namespace isthmus {

struct WatchedUnit;

// The replica of one unit: the shards of this rank's rail, by node.
struct Replica {
  uint64_t hash = 0;      // of the unit's key
  uint64_t gathers = 0;   // so far; equal on all ranks
  Buffer shards;          // of all nodes, of the gathered type; zeros behind them up to a multiple of 8 bytes
  bool is_valid = false;  // what the peers have, too
  DeviceMemory memory;
  // On a GPU alone, where zeros are what the peers have before the first gather.
  std::shared_ptr<WatchedUnit> watched;
  EventPtr last_use;  // passes when the last gather is done with it

  // Whether the next gather compares replicas: the second one, and each interval after it. 0: none does.
  bool is_compared(int64_t interval) const {
    const auto every = static_cast<uint64_t>(interval);
    return every > 0 && gathers % every == 1 % every;
  }
  // With the zeros behind it: what checksum_of() takes.
  ConstBuffer words() const { return {shards.data, (shards.bytes() + 7) / 8 * 8, DataType::kByte}; }
};

// At most `max_units`; none is evicted. On a GPU, where ranks cannot tell each other that they lack one, those that
// were dropped count, too: when that happens is every rank's own affair. Not thread-safe. The device outlives it.
class WeightReplicas {
 public:
  WeightReplicas(Device& device, int64_t max_units) : device_(device), max_units_(max_units) {}

  // The replica of a unit whose rail has `num_elements` of weights; made, and not valid, when first asked for. Null if
  // it is new and there are max_units already. Throws Error that names unit and bytes if there is no memory for it.
  Replica* find_or_add(const UnitKey& key, int64_t num_elements);
  // Drops the replicas of the units of that name, if there are any.
  void drop(const std::string& name);
  void clear();

  int64_t bytes() const { return bytes_; }

 private:
  Device& device_;
  const int64_t max_units_;
  int64_t bytes_ = 0;
  int64_t num_made_ = 0;
  std::map<UnitKey, Replica> replicas_;
};

}  // namespace isthmus
