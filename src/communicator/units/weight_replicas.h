// What the ranks of a rail last sent each other of their weights.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "isthmus/device.h"
#include "isthmus/unit.h"

namespace isthmus {

// The replica of one unit: the shards of this rank's rail, by node. A gather under way owns it as well.
struct Replica {
  uint64_t hash = 0;      // of the unit's key
  uint64_t gathers = 0;   // so far; equal on all ranks
  Buffer shards;          // of all nodes, in the gathered type; zeros fill them up to a multiple of 8 bytes
  bool is_valid = false;  // whether the peers have the same
  DeviceMemory memory;
  EventPtr last_use;  // passes when the last gather is done with it; null on the CPU, and before the first one

  // Whether the next gather compares replicas: the second one does, and each interval after it. 0: none does.
  bool is_compared(int64_t interval) const {
    const auto every = static_cast<uint64_t>(interval);
    return every > 0 && gathers % every == 1 % every;
  }
  // The shards with the zeros behind them, as checksum_of() takes them.
  ConstBuffer words() const { return {shards.data, (shards.bytes() + 7) / 8 * 8, DataType::kByte}; }
};

// Holds at most `max_units` replicas and evicts none. Not thread-safe. The device outlives it.
class WeightReplicas {
 public:
  WeightReplicas(Device& device, int64_t max_units) : device_(device), max_units_(max_units) {}

  // The replica of a unit whose rail has `num_elements` of weights. The first call makes it, not valid yet. Returns
  // null if it is new and there are max_units already. Throws Error that names unit and bytes if memory is lacking.
  std::shared_ptr<Replica> find_or_add(const UnitKey& key, int64_t num_elements);
  void drop(const std::string& name);

  int64_t bytes() const { return bytes_; }

 private:
  Device& device_;
  const int64_t max_units_;
  int64_t bytes_ = 0;
  std::map<UnitKey, std::shared_ptr<Replica>> replicas_;
};

}  // namespace isthmus
