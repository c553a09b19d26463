// Checks `tagc` packets before they are used. Afterwards no mark leads outside the piece, even in a forged packet.
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
    for_each_by_group(group, job.num_packets, [&](int64_t i) { check(group, job.place_of(i)); });
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

  template <typename Group>
  ISTHMUS_DEVICE void check(Group& group, int64_t packet) const {
    const TagcShape& shape = job.shape;
    const uint8_t* bytes = job.packets + packet * job.packet_bytes;
    const auto* flags = reinterpret_cast<const uint64_t*>(bytes + job.layout.flags);
    const auto* index = reinterpret_cast<const uint64_t*>(bytes + job.layout.index);
    const bool padding = any_set(group, bytes, kHeaderWords * 8, job.layout.flags) ||
                         any_set(group, bytes, job.layout.flags + 8 * shape.flag_words(), job.layout.index) ||
                         any_set(group, bytes, job.layout.index + 8 * shape.index_words(), job.layout.sketch);
    bool empty = false;
    for_each_of_group(group, shape.flag_words(), [&](int64_t w) {
      for_each_bit(flags[w], 64 * w, [&](int64_t block) {
        empty |= block < shape.num_blocks && !marks_any(index + block * shape.block_words());
      });
    });
    uint32_t found = found_by_any(group, FaultKind::kPadding, padding);
    found |= found_by_any(group, FaultKind::kFlags, any_past(group, flags, shape.flag_words(), shape.num_blocks));
    found |= found_by_any(group, FaultKind::kIndex, any_past(group, index, shape.index_words(), shape.num_elements));
    found |= found_by_any(group, FaultKind::kEmptyBlock, empty);
    if (group.thread() == 0) {
      job.found[packet] = found;
    }
  }

  template <typename Group>
  static ISTHMUS_DEVICE uint32_t found_by_any(Group& group, FaultKind kind, bool is_found) {
    return group.any(is_found) ? found_fault(kind) : 0;
  }

  // Whether this thread finds a byte other than 0 from `begin` to `end`.
  template <typename Group>
  static ISTHMUS_DEVICE bool any_set(const Group& group, const uint8_t* bytes, int64_t begin, int64_t end) {
    uint32_t set = 0;
    for_each_of_group(group, end - begin, [&](int64_t i) { set |= bytes[begin + i]; });
    return set != 0;
  }

  // Whether this thread finds a bit at or after `num_bits`.
  template <typename Group>
  static ISTHMUS_DEVICE bool any_past(const Group& group, const uint64_t* words, int64_t num_words, int64_t num_bits) {
    bool found = false;
    const int64_t whole = num_bits / 64;
    for_each_of_group(group, num_words - whole,
                      [&](int64_t i) { found |= (i == 0 ? words[whole] >> (num_bits % 64) : words[whole + i]) != 0; });
    return found;
  }

  ISTHMUS_DEVICE bool marks_any(const uint64_t* block_index) const {
    uint64_t marks = 0;
    for (int64_t w = 0; w < job.shape.block_words(); ++w) {
      marks |= block_index[w];
    }
    return marks != 0;
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
