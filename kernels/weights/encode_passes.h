// Encodes weight differences on many groups. Blocks are compared, coded by teams of 16 lanes in their own areas, and
// moved to their places in the packet once all sizes are known.
#pragma once

#include "kernels/block/packet_passes.h"
#include "kernels/weights/job.h"
#include "kernels/weights/lane_encoder.h"
#include "kernels/weights/team.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Finds which blocks changed, and writes the bytes of each to `block_bytes`, or 0 if it did not.
template <typename Format>
struct CompareWeights {
  WeightEncodeJob job;
  WeightShape shape;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() == 0 && group.thread() == 0) {
      *job.state = WeightEncodeState{};
    }
    for_each_by_group(group, shape.num_blocks(), [&](int64_t block) {
      const int64_t bytes = shape.bytes_of(block);
      const bool differs = group.any(differ(group, shape.begin_of(block), bytes));
      if (group.thread() == 0) {
        job.block_bytes[block] = differs ? static_cast<uint32_t>(bytes) : 0;
      }
    });
  }

 private:
  // Whether any elements that this thread compares differ.
  template <typename Group>
  ISTHMUS_DEVICE bool differ(const Group& group, int64_t begin, int64_t bytes) const {
    const uint8_t* before = static_cast<const uint8_t*>(job.before.data) + begin;
    const uint8_t* now = static_cast<const uint8_t*>(job.shard.data) + begin;
    if (is_aligned(before, sizeof(WordPair)) && is_aligned(now, sizeof(WordPair))) {
      const int64_t whole = bytes / static_cast<int64_t>(sizeof(WordPair)) * static_cast<int64_t>(sizeof(WordPair));
      return differ_as<WordPair>(group, before, now, whole) |
             differ_as<typename Format::Bits>(group, before + whole, now + whole, bytes - whole);
    }
    return differ_as<typename Format::Bits>(group, before, now, bytes);
  }

  template <typename T, typename Group>
  static ISTHMUS_DEVICE bool differ_as(const Group& group, const uint8_t* before, const uint8_t* now, int64_t bytes) {
    const T* a = reinterpret_cast<const T*>(before);
    const T* b = reinterpret_cast<const T*>(now);
    const int count = static_cast<int>(bytes / static_cast<int64_t>(sizeof(T)));
    bool differs = false;
    ISTHMUS_UNROLL_8  // so that the loads of several turns keep the memory busy
        for (int i = static_cast<int>(group.thread()); i < count; i += static_cast<int>(group.size())) {
      differs |= is_other(a[i], b[i]);
    }
    return differs;
  }

  static ISTHMUS_DEVICE bool is_other(const WordPair& a, const WordPair& b) {
    return ((a.value[0] ^ b.value[0]) | (a.value[1] ^ b.value[1])) != 0;
  }
  template <typename Bits>
  static ISTHMUS_DEVICE bool is_other(Bits a, Bits b) {
    return a != b;
  }
};

struct ChecksumReplica {
  static constexpr int kThreads = kChecksumThreads;

  WeightEncodeJob job;
  int64_t num_words;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    checksum_words(group, job.replica.data, num_words, 0, job.replica_parts);
  }
};

ISTHMUS_DEVICE void write_sealed(const WeightEncodeJob& job, WeightHeaderWords header) {
  header.word[kWeightGather] |= uint64_t{checksum_of_weight_header(header)} << kWeightUpperHalf;
  *reinterpret_cast<WeightHeaderWords*>(job.sent) = header;
}

// Writes the header of a rank without a replica. One thread.
struct WriteWeightHeader {
  WeightEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.thread() == 0) {
      write_sealed(job, job.header);
    }
  }
};

// Writes the header. sum: the checksum of the packet's words. All threads of one group call it.
template <typename Group>
ISTHMUS_DEVICE void write_header(Group& group, const WeightEncodeJob& job, uint64_t sum) {
  const uint64_t replica_sum = job.replica.data == nullptr ? 0 : sum_parts(group, job.replica_parts, 0);
  if (group.thread() == 0) {
    WeightHeaderWords header = job.header;
    header.word[kWeightPacketBytes] = job.state->packet_bytes;
    header.word[kWeightPacketChecksum] = weight_checksum(sum);
    header.word[kWeightReplicaChecksum] = job.replica.data == nullptr ? 0 : weight_checksum(replica_sum);
    write_sealed(job, header);
  }
}

// Codes each changed block in its area. The last group finds the blocks' places and the packet's size.
template <typename Format>
struct CodeWeights {
  static constexpr int kThreads = kWeightThreads;
  static constexpr int64_t kMaxSharedBytes = sizeof(WeightEncodeTable);
  using Bits = typename Format::Bits;

  WeightEncodeJob job;
  WeightShape shape;
  WeightEncodeTable table;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if constexpr (kIsCoded<Format>) {
      auto& shared = group.template shared<WeightEncodeTable>();
      bool is_filled = false;
      const WeightTeam<Group> team(group);
      const int64_t num_teams = team.teams_of(group);
      for (int64_t first = group.group_number() * num_teams; first < shape.num_blocks();
           first += group.num_groups() * num_teams) {
        const int64_t block = first + team.number();
        const bool is_active = block < shape.num_blocks() && job.block_bytes[block] != 0;
        if (!group.any(is_active)) {
          continue;
        }
        if (!is_filled) {
          fill_table(group, table, shared);
          group.sync();
          is_filled = true;
        }
        encode(team, shared, is_active ? block : 0, is_active);
      }
    }
    if (group.is_last(job.state->arrived)) {
      place(group);
    }
  }

 private:
  template <typename Group>
  ISTHMUS_DEVICE void encode(const WeightTeam<Group>& team, const WeightEncodeTable& shared, int64_t block,
                             bool is_active) const {
    const auto* old_bits = static_cast<const Bits*>(job.before.data) + block * kWeightBlockElements;
    const auto* new_bits = static_cast<const Bits*>(job.shard.data) + block * kWeightBlockElements;
    const int count = is_active ? static_cast<int>(shape.elements_of(block)) : 0;
    const int area_units = count * static_cast<int>(sizeof(Bits) / sizeof(uint16_t));
    auto* area = reinterpret_cast<uint16_t*>(job.areas + shape.begin_of(block));
    WeightBlockParts& parts = job.coded[block];
    WeightLaneEncoder<Format, Group> encoder(team, shared, area, area_units);
    ISTHMUS_DO_NOT_UNROLL
    for (int index = static_cast<int>(kWeightGroups) - 1; index >= 0; --index) {
      const int begin = index * static_cast<int>(kWeightGroupElements);
      const int left = count - begin;
      const int here = left < 0 ? 0 : left < kWeightGroupElements ? left : static_cast<int>(kWeightGroupElements);
      int8_t moved = 0;
      if (team.any(here > 0)) {
        const int8_t found = move_of(team, old_bits + begin, new_bits + begin, here);
        moved = here > 0 ? found : int8_t{0};
        encode_group(team, encoder, old_bits, new_bits, weight_scale<Format>(moved), begin, here);
      }
      if (is_active && team.thread() == 0) {
        parts.moved[index] = moved;
      }
    }
    encoder.end(parts, is_active);
    if (is_active && team.thread() == 0) {
      const int64_t raw_bytes = shape.bytes_of(block);
      job.block_bytes[block] = static_cast<uint32_t>(encoder.bytes() < raw_bytes ? encoder.bytes() : raw_bytes);
    }
  }

  // Elements of this many steps are loaded while those before are encoded.
  static constexpr int kAhead = 4;
  static constexpr int kSteps = static_cast<int>(kWeightGroupElements) / kWeightLanes;

  template <typename Group>
  ISTHMUS_DEVICE void encode_group(const WeightTeam<Group>& team, WeightLaneEncoder<Format, Group>& encoder,
                                   const Bits* old_bits, const Bits* new_bits, int32_t scale, int begin,
                                   int count) const {
    WeightSteps<Bits, kAhead, WeightTeam<Group>::kOwn> old_ahead;
    WeightSteps<Bits, kAhead, WeightTeam<Group>::kOwn> new_ahead;
    old_ahead.load(team, old_bits + begin, kSteps - kAhead, count);
    new_ahead.load(team, new_bits + begin, kSteps - kAhead, count);
    ISTHMUS_DO_NOT_UNROLL
    for (int first = kSteps - kAhead; first >= 0; first -= kAhead) {
      const auto old_now = old_ahead;
      const auto new_now = new_ahead;
      if (first > 0) {
        old_ahead.load(team, old_bits + begin, first - kAhead, count);
        new_ahead.load(team, new_bits + begin, first - kAhead, count);
      }
      ISTHMUS_UNROLL
      for (int step = kAhead - 1; step >= 0; --step) {
        const int index = (first + step) * kWeightLanes;
        encoder.encode(old_now.bits[step], new_now.bits[step], scale, begin + index, index < count);
      }
    }
  }

  // The estimate of a group of `count` elements.
  template <typename Group>
  ISTHMUS_DEVICE int8_t move_of(const WeightTeam<Group>& team, const Bits* old_bits, const Bits* new_bits,
                                int count) const {
    constexpr int kOwn = WeightTeam<Group>::kOwn;
    const int in_steps = count - count % kWeightLanes;
    MoveEstimate estimate(count);
    while (team.any(!estimate.is_done())) {
      const float most = estimate.most();
      WeightMoves moves[kOwn];
      for (int own = 0; own < kOwn; ++own) {
        const int lane = team.lane(own);
        for (int i = lane; i < in_steps; i += kWeightLanes) {
          moves[own].add(counted_move<Format>(old_bits[i], new_bits[i], most));
        }
        for (int i = in_steps; lane == 0 && i < count; ++i) {
          moves[own].add(counted_move<Format>(old_bits[i], new_bits[i], most));
        }
      }
      estimate.take(team.add_up(moves));
    }
    return estimate.log2_of_mean();
  }

  // All threads of one group.
  template <typename Group>
  ISTHMUS_DEVICE void place(Group& group) const {
    const int64_t num_blocks = shape.num_blocks();
    auto place = static_cast<uint64_t>(shape.directory_bytes());
    bool changed = false;
    for (int64_t base = 0; base < num_blocks; base += group.size()) {
      const int64_t block = base + group.thread();
      const uint32_t units = block < num_blocks ? (job.block_bytes[block] + 1) / 2 : 0;
      uint32_t units_now = 0;
      const uint32_t before = group.exclusive_sum(units, units_now);
      if (block < num_blocks) {
        job.places[block] = place + 2 * uint64_t{before};
      }
      place += 2 * uint64_t{units_now};
      changed |= units_now > 0;
    }
    if (group.thread() == 0) {
      job.state->packet_bytes = changed ? (place + 7) / 8 * 8 : 0;
    }
  }
};

// Moves blocks to their places in the packet.
template <typename Format>
struct PlaceWeights {
  using Bits = typename Format::Bits;

  WeightEncodeJob job;
  WeightShape shape;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const uint64_t packet_bytes = job.state->packet_bytes;
    if (packet_bytes == 0) {
      return;
    }
    uint8_t* packet = job.sent + kWeightHeaderBytes;
    for_each_by_group(group, shape.num_blocks(), [&](int64_t block) {
      const uint32_t bytes = job.block_bytes[block];
      if (group.thread() == 0) {
        reinterpret_cast<uint32_t*>(packet)[block] = bytes;
      }
      auto* units = reinterpret_cast<uint16_t*>(packet + job.places[block]);
      if (bytes == shape.bytes_of(block)) {
        for_each_of_group(group, (bytes + 1) / 2, [&](int64_t i) { units[i] = unit_of_shard(block, i); });
      } else if constexpr (kIsCoded<Format>) {
        for_each_of_group(group, bytes / 2, [&](int64_t i) { units[i] = unit_of_coded(block, i); });
      }
    });
    if (group.group_number() == 0) {
      const int64_t last = shape.num_blocks() - 1;
      const uint64_t end = job.places[last] + (job.block_bytes[last] + 1) / 2 * 2;
      for_each_of_group(group, static_cast<int64_t>(packet_bytes - end) / 2,
                        [&](int64_t i) { reinterpret_cast<uint16_t*>(packet + end)[i] = 0; });
    }
  }

 private:
  static constexpr int64_t kUnitsOfBits = sizeof(Bits) / sizeof(uint16_t);  // 0: of bytes

  // Unit i of what the shard has in a block.
  ISTHMUS_DEVICE uint16_t unit_of_shard(int64_t block, int64_t i) const {
    const uint8_t* begin = static_cast<const uint8_t*>(job.shard.data) + shape.begin_of(block);
    if constexpr (kIsCoded<Format>) {
      return unit_of(reinterpret_cast<const Bits*>(begin)[i / kUnitsOfBits], i % kUnitsOfBits);
    } else {
      const bool has_second = 2 * i + 1 < shape.bytes_of(block);
      return static_cast<uint16_t>(begin[2 * i] | (has_second ? begin[2 * i + 1] << 8 : 0));
    }
  }
  static ISTHMUS_DEVICE uint16_t unit_of(Bits pattern, int64_t unit) {
    return static_cast<uint16_t>(uint32_t{pattern} >> (16 * unit));
  }

  // Unit i of a coded block. WeightBlockHeader, words, places of escapes and their patterns follow one another.
  ISTHMUS_DEVICE uint16_t unit_of_coded(int64_t block, int64_t i) const {
    const WeightBlockParts& parts = job.coded[block];
    const auto* area = reinterpret_cast<const uint16_t*>(job.areas + shape.begin_of(block));
    if (i < kWeightGroups / 2) {
      return static_cast<uint16_t>(static_cast<uint8_t>(parts.moved[2 * i]) |
                                   static_cast<uint8_t>(parts.moved[2 * i + 1]) << 8);
    }
    i -= kWeightGroups / 2;
    if (i < kWeightLanes) {
      return parts.states[i];
    }
    i -= kWeightLanes;
    if (i == 0) {
      return parts.num_escapes;
    }
    i -= 1;
    const int64_t area_units = shape.elements_of(block) * kUnitsOfBits;
    if (i < parts.num_words) {
      return area[area_units - parts.num_words + i];
    }
    i -= parts.num_words;
    const uint16_t* last_escape = area + parts.num_escapes - 1;  // they come in descending order
    if (i < parts.num_escapes) {
      return last_escape[-i];
    }
    i -= parts.num_escapes;
    const auto* bits = static_cast<const Bits*>(job.shard.data) + block * kWeightBlockElements;
    return unit_of(bits[last_escape[-(i / kUnitsOfBits)]], i % kUnitsOfBits);
  }
};

// Takes the packet's checksum; the last group writes the header.
struct SealWeights {
  static constexpr int kThreads = kChecksumThreads;

  WeightEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const int64_t num_words = static_cast<int64_t>(job.state->packet_bytes) / kChecksumWordBytes;
    checksum_words(group, job.sent + kWeightHeaderBytes, num_words, 0, job.parts);
    if (group.is_last(job.state->arrived)) {
      write_header(group, job, sum_parts(group, job.parts, 0));
    }
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
