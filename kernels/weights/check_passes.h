// Checks checksums and directories before weight differences are decoded.
#pragma once

#include "kernels/block/packet_passes.h"
#include "kernels/weights/job.h"
#include "kernels/weights/shape.h"

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
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

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
  static constexpr int64_t kMaxSharedBytes = 0;

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

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
