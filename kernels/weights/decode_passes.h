// Decodes weight differences on many groups, a block at a time each, once checksums and directories are found right.
// Whatever was received, only the job's memory is touched.
#pragma once

#include <type_traits>

#include "kernels/block/packet_passes.h"
#include "kernels/weights/decode_block.h"
#include "kernels/weights/formats.h"
#include "kernels/weights/job.h"
#include "kernels/weights/words.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

ISTHMUS_DEVICE const uint64_t* header_of(const WeightDecodeJob& job, int64_t node) { return job.headers[node].word; }
ISTHMUS_DEVICE const uint8_t* packet_of(const WeightDecodeJob& job, int64_t node) {
  return job.packets + node * job.row_bytes;
}
// The bytes that another node sent of its changed shard; 0: there is nothing to decode.
ISTHMUS_DEVICE int64_t bytes_to_decode(const WeightDecodeJob& job, int64_t node) {
  return node == job.node ? 0 : static_cast<int64_t>(header_of(job, node)[kWeightPacketBytes]);
}

// Tells the host which packet is refused: the beginning of its header, and in the checksum's place of what was expected
// the checksum of its bytes, or the number of its bad block. One thread calls it.
template <typename Group>
ISTHMUS_DEVICE void refuse_weights(Group& group, const WeightDecodeJob& job, int64_t node, FaultKind kind,
                                   uint64_t found) {
  job.state->is_refused = 1;
  DeviceFault fault;
  fault.code = DeviceFault::code_of(node, kind);
  for (int i = 0; i < kHeaderWords; ++i) {
    fault.received.word[i] = fault.expected.word[i] = header_of(job, node)[i];
  }
  fault.expected.word[kHeaderChecksum] = found;
  copy_fault(group, fault, *job.mapped_fault);
}
template <typename Group>
ISTHMUS_DEVICE void refuse_bad_block(Group& group, const WeightDecodeJob& job, int64_t num_blocks, int64_t node) {
  const uint32_t block = job.bad_blocks[node];
  refuse_weights(group, job, node, block < num_blocks ? FaultKind::kBlock : FaultKind::kLength, block);
}

// One group runs it. After a fault all is refused.
struct BeginDecodingWeights {
  WeightDecodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.thread() == 0) {
      *job.state = WeightDecodeState{.is_refused = job.mapped_fault->reported};
    }
    for_each_of_group(group, job.num_nodes, [&](int64_t node) { job.bad_blocks[node] = WeightDecodeJob::kNoBlock; });
  }
};

// Checks packets' checksums and directories, which give the places of blocks. The last group refuses bad packets.
template <typename Format>
struct VerifyWeights {
  static constexpr int kThreads = kChecksumThreads;

  WeightDecodeJob job;
  WeightShape shape;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    for_each_by_group(group, job.num_nodes, [&](int64_t node) {
      if (bytes_to_decode(job, node) > 0) {
        read_directory(group, node);
      }
    });
    for (int64_t node = 0; node < job.num_nodes; ++node) {
      const int64_t num_words = bytes_to_decode(job, node) / kChecksumWordBytes;
      if (num_words > 0) {
        checksum_words(group, packet_of(job, node), num_words, node, job.parts);
      }
    }
    if (group.is_last(job.state->arrived)) {
      refuse(group);
    }
  }

 private:
  template <typename Group>
  ISTHMUS_DEVICE void read_directory(Group& group, int64_t node) const {
    const int64_t num_blocks = shape.num_blocks();
    const auto packet_bytes = static_cast<uint64_t>(bytes_to_decode(job, node));
    const auto* directory = reinterpret_cast<const uint32_t*>(packet_of(job, node));
    auto place = static_cast<uint64_t>(shape.directory_bytes());
    if (packet_bytes < place) {
      if (group.thread() == 0) {
        group.fetch_min(job.bad_blocks[node], 0U);
      }
      return;
    }
    for (int64_t base = 0; base < num_blocks; base += group.size()) {
      const int64_t block = base + group.thread();
      const uint32_t bytes = block < num_blocks ? directory[block] : 0;
      const bool is_possible = bytes == 0 || (kIsCoded<Format> ? bytes <= shape.bytes_of(block)  // else it is not read
                                                               : bytes == shape.bytes_of(block));
      uint32_t units_now = 0;
      const uint32_t before = group.exclusive_sum(is_possible ? (bytes + 1) / 2 : 0, units_now);
      if (block < num_blocks) {
        const uint64_t begin = place + 2 * uint64_t{before};
        job.places[node * num_blocks + block] = begin;
        if (!is_possible || begin + bytes > packet_bytes) {
          group.fetch_min(job.bad_blocks[node], static_cast<uint32_t>(block));
        }
      }
      place += 2 * uint64_t{units_now};
    }
    if (group.thread() == 0 && (place + 7) / 8 * 8 != packet_bytes) {
      group.fetch_min(job.bad_blocks[node], static_cast<uint32_t>(num_blocks));
    }
  }

  // All threads of one group.
  template <typename Group>
  ISTHMUS_DEVICE void refuse(Group& group) const {
    for (int64_t node = 0; node < job.num_nodes; ++node) {
      if (bytes_to_decode(job, node) == 0) {
        continue;
      }
      const uint64_t checksum = weight_checksum(sum_parts(group, job.parts, node));
      const bool is_damaged = checksum != header_of(job, node)[kWeightPacketChecksum];
      const bool does_not_decode = job.bad_blocks[node] != WeightDecodeJob::kNoBlock;
      if (is_damaged || does_not_decode) {
        if (group.thread() == 0 && is_damaged) {
          refuse_weights(group, job, node, FaultKind::kChecksum, checksum);
        } else if (group.thread() == 0) {
          refuse_bad_block(group, job, shape.num_blocks(), node);
        }
        return;
      }
    }
  }
};

// Threads of all groups copy whole elements, 16 bytes at a time where both ends are aligned.
template <typename Element, typename Group>
ISTHMUS_DEVICE void copy_elements(const Group& group, const uint8_t* from, uint8_t* to, int64_t bytes) {
  const bool aligned = is_aligned(from, sizeof(WordPair)) && is_aligned(to, sizeof(WordPair));
  const int64_t whole = aligned ? bytes / static_cast<int64_t>(sizeof(WordPair)) : 0;
  for_each_of_all(group, whole,
                  [&](int64_t i) { reinterpret_cast<WordPair*>(to)[i] = reinterpret_cast<const WordPair*>(from)[i]; });
  const int64_t first = whole * static_cast<int64_t>(sizeof(WordPair) / sizeof(Element));
  for_each_of_all(group, bytes / static_cast<int64_t>(sizeof(Element)) - first, [&](int64_t i) {
    reinterpret_cast<Element*>(to)[first + i] = reinterpret_cast<const Element*>(from)[first + i];
  });
}

// Moves the shards of all nodes to their places. The last group reports bad blocks. Where a packet is refused nobody
// may compute with the weights before: NaN stands in the place of each shard that should have changed.
template <typename Format>
struct DecodeWeights {
  static constexpr int kThreads = kWeightThreads;
  static constexpr int kResidentGroups = kResidentWeightGroups;
  static constexpr int64_t kMaxSharedBytes = bytes_of_masks<Format>();
  using Bits = typename Format::Bits;

  WeightDecodeJob job;
  WeightShape shape;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    copy_own(group);
    if (job.state->is_refused != 0) {
      write_nan([&](int64_t count, auto write) { for_each_of_all(group, count, write); });
      return;
    }
    for_each_by_group(group, job.num_nodes * shape.num_blocks(), [&](int64_t i) {
      const int64_t node = i / shape.num_blocks();
      const int64_t block = i % shape.num_blocks();
      const uint32_t bytes = bytes_of(node, block);
      if (bytes == shape.bytes_of(block)) {
        copy_block(group, node, block);
      } else if (bytes > 0 && !decode(group, node, block, bytes) && group.thread() == 0) {
        group.fetch_min(job.bad_blocks[node], static_cast<uint32_t>(block));
      }
    });
    if (group.is_last(job.state->arrived)) {
      conclude(group);
    }
  }

 private:
  // The bytes of the block in a node's packet, and its place there.
  ISTHMUS_DEVICE uint32_t bytes_of(int64_t node, int64_t block) const {
    return bytes_to_decode(job, node) == 0 ? 0 : reinterpret_cast<const uint32_t*>(packet_of(job, node))[block];
  }
  ISTHMUS_DEVICE uint64_t begin_of(int64_t node, int64_t block) const {
    return job.places[node * shape.num_blocks() + block];
  }
  ISTHMUS_DEVICE uint8_t* place_of(int64_t node, int64_t block) const {
    return static_cast<uint8_t*>(job.replica.data) + node * shape.bytes() + shape.begin_of(block);
  }

  template <typename Group>
  ISTHMUS_DEVICE void copy_own(const Group& group) const {
    if (job.node == job.num_nodes || header_of(job, job.node)[kWeightPacketBytes] == 0) {
      return;
    }
    const auto* from = static_cast<const uint8_t*>(job.shard.data);
    uint8_t* to = place_of(job.node, 0);
    copy_elements<Bits>(group, from, to, shape.bytes());
  }

  // All bits are set: a NaN of every floating type. for_each(count, visit) spreads elements over threads.
  template <typename ForEach>
  ISTHMUS_DEVICE void write_nan(ForEach for_each) const {
    for (int64_t node = 0; node < job.num_nodes; ++node) {
      if (bytes_to_decode(job, node) > 0) {
        auto* elements = reinterpret_cast<Bits*>(place_of(node, 0));
        for_each(shape.bytes() / static_cast<int64_t>(sizeof(Bits)),
                 [=](int64_t i) { elements[i] = static_cast<Bits>(~Bits{0}); });
      }
    }
  }

  // A block that was sent as it is.
  template <typename Group>
  ISTHMUS_DEVICE void copy_block(const Group& group, int64_t node, int64_t block) const {
    using Unit = std::conditional_t<kIsCoded<Format>, uint16_t, uint8_t>;
    const auto* from = reinterpret_cast<const Unit*>(packet_of(job, node) + begin_of(node, block));
    auto* to = reinterpret_cast<Unit*>(place_of(node, block));
    for_each_of_group(group, shape.bytes_of(block) / static_cast<int64_t>(sizeof(Unit)),
                      [=](int64_t i) { to[i] = from[i]; });
  }

  // Whether the block decodes.
  template <typename Group>
  ISTHMUS_DEVICE bool decode(Group& group, int64_t node, int64_t block, uint32_t bytes) const {
    if constexpr (kIsCoded<Format>) {
      auto* bits = reinterpret_cast<Bits*>(place_of(node, block));
      const auto count = static_cast<int>(shape.elements_of(block));
      auto& masks = group.template shared<WeightMasks<Format>>();
      auto decoder = decoder_of_block(group, masks, count, packet_of(job, node) + begin_of(node, block), bytes);
      return bytes % 2 == 0 && decoder.decode(WeightWords<Format>{bits, bits, count});
    } else {
      return false;
    }
  }

  // All threads of one group.
  template <typename Group>
  ISTHMUS_DEVICE void conclude(Group& group) const {
    for (int64_t node = 0; node < job.num_nodes; ++node) {
      if (job.bad_blocks[node] != WeightDecodeJob::kNoBlock) {
        if (group.thread() == 0) {
          refuse_bad_block(group, job, shape.num_blocks(), node);
        }
        write_nan([&](int64_t count, auto write) { for_each_of_group(group, count, write); });
        return;
      }
    }
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
