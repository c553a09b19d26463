// The lengths of one unit's packets on a GPU, and the room that the next packet needs. See docs/weights.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace isthmus {

// The host enqueues a gather before the GPU knows how long its packets are, and all ranks of a rail must give them
// equal room. So the room follows from headers of earlier gathers, which all ranks have seen, up to the one before the
// last: a host that runs ahead of its GPU knows that one by then.
//
// A gather is expected to do what followed the longest earlier stretch in which shards changed in the same order as
// lately: the gathers of a step, of micro-batches and of an evaluation each have their own order. If several stretches
// of one length differ, a change is expected: unused room costs less than a packet that does not fit.
//
// Not thread-safe.
class WeightHistory {
 public:
  // The room does not depend on so many gathers before the next one.
  static constexpr int64_t kLag = 2;

  // Adds the next known gather: the bytes of its longest packet, 0 if no shard of the rail had changed.
  void add(int64_t longest_packet_bytes);
  // How many gathers, from the first on, have known sizes.
  int64_t num_known() const { return first_ + static_cast<int64_t>(packets_.size()); }
  // The room for packets in gather `number`, counted from 0: a multiple of 256 bytes, or most_bytes, which no packet
  // exceeds. 0: no change is expected. It depends only on gathers up to number - kLag, which must be known.
  int64_t capacity(int64_t number, int64_t most_bytes) const;

 private:
  bool has_changed(int64_t number) const { return bytes_of(number) > 0; }
  int64_t bytes_of(int64_t number) const { return packets_[static_cast<size_t>(number - first_)]; }
  // The oldest gather that counts: this rank may know newer ones than other ranks, and older ones may be forgotten.
  static int64_t oldest_for(int64_t number);
  // Nothing: the past does not tell.
  std::optional<bool> expects_change(int64_t number) const;

  int64_t first_ = 0;  // number of packets_.front(): older ones are forgotten
  std::deque<int64_t> packets_;
};

}  // namespace isthmus
