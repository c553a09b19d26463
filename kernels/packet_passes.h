// Headers and checksums of packets on many groups: what all codecs have in common.
#pragma once

#include "kernels/checksum.h"
#include "kernels/device.h"
#include "kernels/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

ISTHMUS_DEVICE HeaderWords in_context(HeaderWords header, const DeviceContext& context) {
  header.word[kHeaderUnit] = context.unit_hash;
  header.word[kHeaderStep] = context.step;
  return header;
}

// Adds to `checksum` what this thread's chains of `num_words` words add to it. word_at(w) is called once for each word.
template <typename Group, typename WordAt>
ISTHMUS_DEVICE void add_checksum(Group& group, int64_t num_words, uint64_t& checksum, WordAt word_at) {
  constexpr int64_t kSegmentWords = kChecksumSegmentBytes / kChecksumWordBytes;
  const int64_t num_segments = (num_words + kSegmentWords - 1) / kSegmentWords;
  uint64_t sum = 0;
  for_each_of_all(group, num_segments * kChecksumLanes, [&](int64_t chain) {
    const int64_t segment = chain / kChecksumLanes;
    const int64_t lane = chain % kChecksumLanes;
    const int64_t end = (segment + 1) * kSegmentWords < num_words ? (segment + 1) * kSegmentWords : num_words;
    uint64_t state = checksum_begin(segment, lane);
    ISTHMUS_UNROLL_8
    for (int64_t w = segment * kSegmentWords + lane; w < end; w += kChecksumLanes) {
      state = checksum_step(state, word_at(w));
    }
    sum += checksum_end(state);
  });
  sum = group.sum(sum);
  if (group.thread() == 0) {
    group.fetch_add(checksum, sum);
  }
}

// On how many groups it takes the checksums of packets of this size.
inline int64_t checksum_groups(int64_t packet_bytes) {
  return divide_up(divide_up(packet_bytes, kChecksumSegmentBytes) * kChecksumLanes, kPassThreads);
}

// Adds up the checksums of packets that lie one after another.
struct ChecksumPackets {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  const uint8_t* packets;
  int64_t packet_bytes;
  int64_t num_packets;
  uint64_t* checksums;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    for (int64_t packet = 0; packet < num_packets; ++packet) {
      const auto* words = reinterpret_cast<const uint64_t*>(packets + packet * packet_bytes) + kHeaderWords;
      add_checksum(group, packet_bytes / 8 - kHeaderWords, checksums[packet], [=](int64_t w) { return words[w]; });
    }
  }
};

// Writes the header of a packet that is complete otherwise. One thread.
struct WriteHeader {
  static constexpr int kThreads = 32;
  static constexpr int64_t kMaxSharedBytes = 0;

  HeaderWords header;
  const DeviceContext* context;
  const uint64_t* checksum;
  uint8_t* packet;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() == 0 && group.thread() == 0) {
      HeaderWords words = in_context(header, *context);
      words.word[kHeaderChecksum] = *checksum;
      for (int i = 0; i < kHeaderWords; ++i) {
        reinterpret_cast<uint64_t*>(packet)[i] = words.word[i];
      }
    }
  }
};

// Reports that the `bad` of some thread is true. A barrier.
template <typename Group>
ISTHMUS_DEVICE void report(Group& group, bool bad, int64_t packet, FaultKind kind, DeviceFault* fault,
                           DecodeState* state) {
  if (group.any(bad) && group.thread() == 0) {
    group.fetch_min(fault->code, DeviceFault::code_of(packet, kind));
    group.fetch_or(state->refused, uint64_t{1});
  }
}

// Compares header and checksum with what is expected. All threads of a group.
template <typename Group>
ISTHMUS_DEVICE void check_header(Group& group, const uint8_t* bytes, const HeaderWords& expected, uint64_t checksum,
                                 int64_t packet, DeviceFault* fault, DecodeState* state) {
  const auto* words = reinterpret_cast<const uint64_t*>(bytes);
  bool differs = false;
  for (int i = 0; i < kHeaderChecksum; ++i) {
    differs |= words[i] != expected.word[i];
  }
  report(group, differs, packet, FaultKind::kHeader, fault, state);
  report(group, words[kHeaderChecksum] != checksum, packet, FaultKind::kChecksum, fault, state);
}

// The end of a decoding: copies the header of a packet that was refused, for the host. One thread.
struct ReportFault {
  static constexpr int kThreads = 32;
  static constexpr int64_t kMaxSharedBytes = 0;

  HeaderWords header;
  const DeviceContext* context;
  const uint8_t* packets;
  int64_t packet_bytes;
  const uint64_t* checksums;
  DeviceFault* fault;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() != 0 || group.thread() != 0 || fault->code == DeviceFault::kNone || fault->reported != 0) {
      return;
    }
    const int64_t packet = fault->code / DeviceFault::kKinds;
    fault->expected = in_context(header, *context);
    fault->expected.word[kHeaderChecksum] = checksums[packet];
    for (int i = 0; i < kHeaderWords; ++i) {
      fault->received.word[i] = reinterpret_cast<const uint64_t*>(packets + packet * packet_bytes)[i];
    }
    fault->reported = 1;
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
