// How long the packets of one unit's gathers were on a GPU, and how much room the next one needs. docs/weights.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace isthmus {

// The host enqueues a gather before the GPU knows how long its packets will be, and all ranks of a rail must give them
// equal room. So the room follows from earlier gathers, whose headers all ranks have seen: from those up to the one
// before the last, which a host that runs ahead of its GPU knows by then.
//
// What comes next is what came after the longest stretch of the past in which shards had changed in the same order as
// lately: gathers of a step, of micro-batches, and of an evaluation between steps, have an order of their own. After
// several such stretches of one length, a change that came after one of them is expected: room in vain costs less than
// a packet that does not fit.
//
// Not thread-safe.
class WeightHistory {
 public:
  // So many gathers before the next one are not asked for.
  static constexpr int64_t kLag = 2;

  // Adds the next gather that is known: the bytes of its longest packet, 0 where no shard of the rail had changed.
  void add(int64_t longest_packet_bytes);
  // The number of gathers, from the first on, whose sizes are known.
  int64_t num_known() const { return first_ + static_cast<int64_t>(packets_.size()); }
  // The room for packets in gather `number`, counted from 0: a multiple of 256 bytes, or most_bytes, which no packet
  // exceeds. 0: nothing is expected to have changed. Depends on gathers up to number - kLag alone, which must be known.
  int64_t capacity(int64_t number, int64_t most_bytes) const;

 private:
  bool has_changed(int64_t number) const { return bytes_of(number) > 0; }
  int64_t bytes_of(int64_t number) const { return packets_[static_cast<size_t>(number - first_)]; }
  // The oldest gather that is asked for: more may be known here than on other ranks, and older ones forgotten.
  static int64_t oldest_for(int64_t number);
  // Nothing: the past says nothing.
  std::optional<bool> expects_change(int64_t number) const;

  int64_t first_ = 0;  // number of packets_.front(): older ones are forgotten
  std::deque<int64_t> packets_;
};

}  // namespace isthmus
