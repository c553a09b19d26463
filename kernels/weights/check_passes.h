// Checks headers, checksums and directories before weight differences are decoded.
#pragma once

#include "kernels/block/packet_passes.h"
#include "kernels/weights/job.h"
#include "kernels/weights/shape.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

ISTHMUS_DEVICE const uint64_t* header_of(const WeightDecodeJob& job, int64_t node) {
  return reinterpret_cast<const uint64_t*>(job.received + node * (kWeightHeaderBytes + job.capacity));
}
ISTHMUS_DEVICE const uint8_t* packet_of(const WeightDecodeJob& job, int64_t node) {
  return reinterpret_cast<const uint8_t*>(header_of(job, node) + kWeightHeaderWords);
}
// The bytes that another node sent of its changed shard; 0: there is nothing to decode. Headers must be checked before.
ISTHMUS_DEVICE int64_t bytes_to_decode(const WeightDecodeJob& job, int64_t node) {
  return node == job.node ? 0 : static_cast<int64_t>(header_of(job, node)[kWeightPacketBytes]);
}

ISTHMUS_DEVICE uint32_t number_told(const WeightDecodeJob& job) {
  return static_cast<uint32_t>(job.expected.word[kWeightGather]) + 1;
}

// Tells the host. One thread calls it, after a barrier behind everything that it reports.
template <typename Group>
ISTHMUS_DEVICE void publish_outcome(Group& group, const WeightDecodeJob& job, WeightVerdict verdict,
                                    WeightFault fault = WeightFault::kNone, int64_t node = 0, uint64_t block = 0,
                                    uint64_t checksum = 0) {
  job.state->is_decided = 1;
  job.state->is_refused = verdict == WeightVerdict::kFault ? 1 : 0;
  job.outcome->verdict = verdict;
  job.outcome->fault = fault;
  job.outcome->fault_node = static_cast<uint32_t>(node);
  job.outcome->fault_block = block;
  job.outcome->checksum = checksum;
  group.publish(job.outcome->gather, number_told(job));
}

// Checks the headers, and derives what follows only from them. One group runs it.
struct CheckWeightHeaders {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  WeightDecodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() != 0) {
      return;
    }
    if (group.thread() == 0) {
      *job.state = WeightDecodeState{};
    }
    group.sync();
    auto* copies = reinterpret_cast<uint64_t*>(job.outcome + 1);
    const uint64_t replica_checksum = header_of(job, 0)[kWeightReplicaChecksum];
    bool has_changed = false;
    bool is_too_long = false;
    bool differs = false;
    for_each_of_group(group, job.num_nodes, [&](int64_t node) {
      WeightHeaderWords header;
      for (int i = 0; i < kWeightHeaderWords; ++i) {
        header.word[i] = header_of(job, node)[i];
        copies[node * kWeightHeaderWords + i] = header.word[i];
      }
      job.bad_blocks[node] = WeightDecodeState::kNone;
      if (!is_expected(header, node)) {
        group.fetch_min(job.state->bad_node, static_cast<uint32_t>(node));
      }
      has_changed |= header.word[kWeightPacketBytes] != 0;
      is_too_long |= header.word[kWeightPacketBytes] > static_cast<uint64_t>(job.capacity);
      differs |= header.word[kWeightReplicaChecksum] != replica_checksum;
    });
    has_changed = group.any(has_changed);
    is_too_long = group.any(is_too_long);
    differs = group.any(differs);
    if (group.thread() != 0) {
      return;
    }
    if (job.state->bad_node != WeightDecodeState::kNone) {
      publish_outcome(group, job, WeightVerdict::kFault, WeightFault::kHeader, job.state->bad_node);
    } else if (is_too_long) {
      leave_to_host(WeightVerdict::kTooLong);
    } else if (differs) {
      leave_to_host(WeightVerdict::kReplicasDiffer);
    } else if (!has_changed) {
      publish_outcome(group, job, WeightVerdict::kInPlace);
    }
  }

 private:
  ISTHMUS_DEVICE void leave_to_host(WeightVerdict why) const {
    job.state->is_decided = 1;
    job.state->carries = why;
  }

  ISTHMUS_DEVICE bool is_expected(const WeightHeaderWords& header, int64_t node) const {
    constexpr uint64_t kLower = (uint64_t{1} << kWeightUpperHalf) - 1;
    constexpr uint64_t kNoSender = (uint64_t{1} << kWeightSenderBit) - 1;
    const WeightHeaderWords& expected = job.expected;
    const uint64_t identity = (expected.word[kWeightIdentity] & kNoSender) | static_cast<uint64_t>(node)
                                                                                 << kWeightSenderBit;
    return header.word[kWeightGather] >> kWeightUpperHalf == checksum_of_weight_header(header) &&
           header.word[kWeightIdentity] == identity && header.word[kWeightUnit] == expected.word[kWeightUnit] &&
           ((header.word[kWeightGather] ^ expected.word[kWeightGather]) & kLower) == 0 &&
           header.word[kWeightElements] == expected.word[kWeightElements] &&
           (header.word[kWeightHasReplica] & kLower) == 1 && header.word[kWeightPacketBytes] % 8 == 0 &&
           header.word[kWeightPacketBytes] <= static_cast<uint64_t>(job.most_bytes);
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
    if (job.state->is_decided != 0) {
      return;
    }
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
      const bool does_not_decode = job.bad_blocks[node] != WeightDecodeState::kNone;
      if (is_damaged || does_not_decode) {
        if (group.thread() == 0 && is_damaged) {
          publish_outcome(group, job, WeightVerdict::kFault, WeightFault::kChecksum, node, 0, checksum);
        } else if (group.thread() == 0) {
          publish_bad_block(group, job, shape.num_blocks(), node);
        }
        return;
      }
    }
  }

 public:
  template <typename Group>
  static ISTHMUS_DEVICE void publish_bad_block(Group& group, const WeightDecodeJob& job, int64_t num_blocks,
                                               int64_t node) {
    const uint32_t block = job.bad_blocks[node];
    const bool is_block = block < num_blocks;
    publish_outcome(group, job, WeightVerdict::kFault, is_block ? WeightFault::kBlock : WeightFault::kLength, node,
                    is_block ? block : 0);
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
