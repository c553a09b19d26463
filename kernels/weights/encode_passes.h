// Encodes weight differences on many groups. Blocks are compared, coded in their own areas, and moved to their places
// in the packet once all sizes are known.
#pragma once

#include "kernels/block/packet_passes.h"
#include "kernels/weights/encode_block.h"
#include "kernels/weights/formats.h"
#include "kernels/weights/job.h"
#include "kernels/weights/words.h"

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
  static constexpr int kResidentGroups = kResidentWeightGroups;
  static constexpr int64_t kMaxSharedBytes = bytes_of_masks<Format>();

  WeightEncodeJob job;
  WeightShape shape;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if constexpr (kIsCoded<Format>) {
      for_each_by_group(group, shape.num_blocks(), [&](int64_t block) {
        if (job.block_bytes[block] != 0) {
          encode(group, block);
        }
      });
    }
    if (group.is_last(job.state->arrived)) {
      place(group);
    }
  }

 private:
  template <typename Group>
  ISTHMUS_DEVICE void encode(Group& group, int64_t block) const {
    using Bits = typename Format::Bits;
    const int64_t first = block * kWeightBlockElements;
    const int64_t raw_bytes = shape.bytes_of(block);
    const auto count = static_cast<int>(shape.elements_of(block));
    const WeightWords<Format> words = {static_cast<const Bits*>(job.before.data) + first,
                                       static_cast<Bits*>(const_cast<void*>(job.shard.data)) + first, count};
    WeightBlockEncoder encoder(group, group.template shared<WeightMasks<Format>>(), count,
                               reinterpret_cast<uint64_t*>(job.areas + shape.begin_of(block)),
                               static_cast<uint32_t>(8 * raw_bytes));
    const uint32_t num_bits = encoder.encode(words);
    group.sync();  // all have read that the block changed
    if (group.thread() == 0) {
      job.block_bytes[block] = static_cast<uint32_t>(bytes_of_coded(num_bits, raw_bytes));
    }
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
        const auto* coded = reinterpret_cast<const uint16_t*>(job.areas + shape.begin_of(block));
        for_each_of_group(group, bytes / 2, [&](int64_t i) { units[i] = coded[i]; });
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
      return static_cast<uint16_t>(uint32_t{reinterpret_cast<const Bits*>(begin)[i / kUnitsOfBits]} >>
                                   (16 * (i % kUnitsOfBits)));
    } else {
      const bool has_second = 2 * i + 1 < shape.bytes_of(block);
      return static_cast<uint16_t>(begin[2 * i] | (has_second ? begin[2 * i + 1] << 8 : 0));
    }
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
