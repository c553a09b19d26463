// Checks `tagc` packets before they are used.
#pragma once

#include "kernels/block/packet_passes.h"
#include "kernels/elementwise/shard_values.h"
#include "kernels/tagc/slab.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr int kSumAtOnce = 8;  // elements of a thread

// sum = own, or zeros, by the threads of a pass that has other work too. Reads the own piece once and writes the sum
// once.
template <typename Group>
ISTHMUS_DEVICE void begin_sum_beside(const Group& group, const DecodeJobBase& job) {
  if (job.own.data == job.sum.data) {
    return;
  }
  for_each_of_all(group, divide_up(job.sum.num_elements, kSumAtOnce), [&](int64_t i) {
    store_scaled_values<kSumAtOnce>(load_values<kSumAtOnce>(job.own, kSumAtOnce * i), 1, job.sum, kSumAtOnce * i);
  });
}

// Does what must precede peeling: begins the sum, draws the blocks' rows, takes all packets' checksums, and writes
// their indices as the slabs' keys, without flagged blocks. A group checks a packet; the findings are evaluated later,
// with header and checksum. After a fault it does nothing.
struct OpenPackets {
  static constexpr int kResidentGroups = 2;
  static constexpr int64_t kMaxSharedBytes = SpreadTile::kMaxSharedBytes;

  TagcDecodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() == 0 && group.thread() == 0) {
      *job.state = DecodeState{};
    }
    if (job.fault->reported != 0) {  // by an earlier decoding
      return;
    }
    begin_sum_beside(group, job);
    for_each_of_all(group, job.shape.num_blocks,
                    [&](int64_t block) { draw_rows(job.shape, *job.context, block, job.rows); });
    for (int64_t i = 0; i < job.num_packets; ++i) {
      const int64_t packet = job.place_of(i);
      checksum_packet(group, job.packets + packet * job.packet_bytes, job.packet_bytes, {}, packet, job.parts);
    }
    for_each_by_group(group, job.num_packets, [&](int64_t i) {
      const int64_t packet = job.place_of(i);
      const uint32_t found = find_faults(group, job.shape, job.layout, job.packets + packet * job.packet_bytes);
      if (group.thread() == 0) {
        job.found[packet] = found;
      }
    });
    const int64_t tiles = num_tiles(job.shape);
    for_each_by_group(group, job.num_packets * tiles,
                      [&](int64_t i) { spread(group, job.place_of(i / tiles), i % tiles); });
  }

 private:
  template <typename Group>
  ISTHMUS_DEVICE void spread(Group& group, int64_t packet, int64_t tile) const {
    const uint8_t* bytes = job.packets + packet * job.packet_bytes;
    const auto* flags = reinterpret_cast<const uint64_t*>(bytes + job.layout.flags);
    const auto* index = reinterpret_cast<const uint32_t*>(bytes + job.layout.index);
    uint32_t* keys = job.slabs.keys + packet * num_slabs(job.shape) * slab_words(job.shape);
    SpreadTile::run(group, job.shape, tile, keys,
                    [&](int64_t word) { return is_flagged(flags, block_of_word(job.shape, word)) ? 0 : index[word]; });
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
