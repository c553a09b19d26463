// Headers and checksums of packets on many groups, common to all codecs.
#pragma once

#include "kernels/block/checksum.h"
#include "kernels/block/device.h"
#include "kernels/block/float_types.h"
#include "kernels/block/job.h"
#include "kernels/block/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Calls visit(T{}) with the C++ type of a piece that codecs for float32 take.
template <typename Visit>
void with_piece_type(DataType dtype, Visit visit) {
  switch (dtype) {
    case DataType::kFloat32:
      return visit(float{});
    case DataType::kBFloat16:
      return visit(BFloat16{});
    case DataType::kFloat16:
      return visit(Float16{});
    case DataType::kFloat64:
    case DataType::kByte:
      return;  // refused when the job was made
  }
}

ISTHMUS_DEVICE HeaderWords in_context(HeaderWords header, const DeviceContext* context) {
  if (context != nullptr) {
    header.word[kHeaderUnit] = context->unit_hash;
    header.word[kHeaderStep] = context->step;
  }
  return header;
}

// The header of one of the packets whose first has `header`.
ISTHMUS_DEVICE HeaderWords of_packet(HeaderWords header, const PacketSenders& senders, int64_t packet) {
  header.word[kHeaderElements] += (senders.of_packet(packet) - senders.first) << kHeaderSenderBit;
  return header;
}

using WordPair = SeveralOf<uint64_t, 2>;

// Two neighbouring chains of one segment are walked by one thread: 16 bytes of every row.
inline constexpr int64_t kPairsOfSegment = kChecksumLanes / 2;

constexpr int64_t checksum_pairs(int64_t num_words) {
  return divide_up(num_words * kChecksumWordBytes, kChecksumSegmentBytes) * kPairsOfSegment;
}

// Each thread has loads of 256 bytes in flight, so that the few threads of a small packet still saturate the memory.
template <typename Loaded>
constexpr int rows_in_flight() {
  int rows = 2;
  while (rows < 16 && 2 * rows * sizeof(Loaded) <= 256) {
    rows *= 2;
  }
  return rows;
}

// The summand of a pair of chains in the checksum of `num_words` words. Access has
//   load(w)          the loads for words w and w + 1, both below num_whole_words
//   use(w, loaded)   processes them, and returns the two words
//   one(w)           the same for any one word
// Loads for several rows come before the first use: stores between them would delay them.
template <typename Access>
ISTHMUS_DEVICE uint64_t walk_pair(int64_t pair, int64_t num_words, int64_t num_whole_words, const Access& access) {
  using Loaded = decltype(access.load(0));
  constexpr int kRows = rows_in_flight<Loaded>();
  constexpr int64_t kSegmentWords = kChecksumSegmentBytes / kChecksumWordBytes;
  const int64_t segment = pair / kPairsOfSegment;
  const int64_t lane = pair % kPairsOfSegment * 2;
  const int64_t end = (segment + 1) * kSegmentWords < num_words ? (segment + 1) * kSegmentWords : num_words;
  const int64_t whole_end = end < num_whole_words ? end : num_whole_words;
  uint64_t states[2] = {checksum_begin(segment, lane), checksum_begin(segment, lane + 1)};
  const auto step = [&](const WordPair& words) {
    states[0] = checksum_step(states[0], words.value[0]);
    states[1] = checksum_step(states[1], words.value[1]);
  };
  int64_t w = segment * kSegmentWords + lane;
  for (; w + (kRows - 1) * kChecksumLanes + 2 <= whole_end; w += kRows * kChecksumLanes) {
    Loaded loaded[kRows];
    ISTHMUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      loaded[r] = access.load(w + r * kChecksumLanes);
    }
    ISTHMUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      step(access.use(w + r * kChecksumLanes, loaded[r]));
    }
  }
  for (; w + 2 <= whole_end; w += kChecksumLanes) {
    step(access.use(w, access.load(w)));
  }
  for (; w < end; w += kChecksumLanes) {
    states[0] = checksum_step(states[0], access.one(w));
    if (w + 1 < end) {
      states[1] = checksum_step(states[1], access.one(w + 1));
    }
  }
  return checksum_end(states[0]) + checksum_end(states[1]);
}

// Threads of a pass that walks checksums: few, so that a small packet is spread over many multiprocessors.
inline constexpr int kChecksumThreads = 128;

// How many groups take the checksum of so many words, or of packets of this size.
inline int64_t checksum_groups_of_words(int64_t num_words) {
  const int64_t groups = divide_up(checksum_pairs(num_words), kChecksumThreads);
  return groups < 1 ? 1 : groups < ChecksumParts::kMaxGroups ? groups : ChecksumParts::kMaxGroups;
}
inline int64_t checksum_groups(int64_t packet_bytes) {
  return checksum_groups_of_words(packet_bytes / kChecksumWordBytes - kHeaderWords);
}

// Thread 0 of each group: writes its group's part of a packet's checksum.
template <typename Group>
ISTHMUS_DEVICE void write_part(const Group& group, const ChecksumParts& parts, int64_t packet, uint64_t part) {
  parts.words[1 + packet * ChecksumParts::kMaxGroups + group.group_number()] = part;
  if (group.group_number() == 0) {
    parts.words[0] = static_cast<uint64_t>(group.num_groups());
  }
}

// The checksum of a packet whose parts are all written. All threads of a group.
template <typename Group>
ISTHMUS_DEVICE uint64_t sum_parts(Group& group, const ChecksumParts& parts, int64_t packet) {
  uint64_t sum = 0;
  for_each_of_group(group, static_cast<int64_t>(parts.words[0]),
                    [&](int64_t i) { sum += parts.words[1 + packet * ChecksumParts::kMaxGroups + i]; });
  return group.sum(sum);
}

// Words that are only read.
struct ReadWords {
  const uint64_t* words;

  ISTHMUS_DEVICE WordPair load(int64_t w) const { return *reinterpret_cast<const WordPair*>(words + w); }
  ISTHMUS_DEVICE WordPair use(int64_t, const WordPair& loaded) const { return loaded; }
  ISTHMUS_DEVICE uint64_t one(int64_t w) const { return words[w]; }
};

// Writes this group's part of the checksum of words that begin at a multiple of 16 bytes.
template <typename Group>
ISTHMUS_DEVICE void checksum_words(Group& group, const void* words, int64_t num_words, int64_t packet_number,
                                   const ChecksumParts& parts) {
  const ReadWords access = {static_cast<const uint64_t*>(words)};
  uint64_t sum = 0;
  for_each_of_all(group, checksum_pairs(num_words),
                  [&](int64_t pair) { sum += walk_pair(pair, num_words, num_words, access); });
  sum = group.sum(sum);
  if (group.thread() == 0) {
    write_part(group, parts, packet_number, sum);
  }
}
template <typename Group>
ISTHMUS_DEVICE void checksum_packet(Group& group, const uint8_t* packet, int64_t packet_bytes, int64_t packet_number,
                                    const ChecksumParts& parts) {
  const auto* words = reinterpret_cast<const uint64_t*>(packet) + kHeaderWords;
  checksum_words(group, words, packet_bytes / kChecksumWordBytes - kHeaderWords, packet_number, parts);
}

// Writes the header of a packet, whose other bytes are written. All threads of one group.
template <typename Group>
ISTHMUS_DEVICE void write_header(Group& group, const EncodeJobBase& job) {
  const uint64_t checksum = sum_parts(group, job.parts, 0);
  if (group.thread() == 0) {
    HeaderWords words = in_context(job.header, job.context);
    words.word[kHeaderChecksum] = checksum;
    for (int i = 0; i < kHeaderWords; ++i) {
      reinterpret_cast<uint64_t*>(job.packet)[i] = words.word[i];
    }
  }
}

// For the first pass of an encoding: one thread for each piece.
ISTHMUS_DEVICE void begin_counting(const EncodeJobBase& job) {
  *job.arrived = 0;
  if (job.is_first_piece) {
    *job.sealed = 0;
  }
}

// The end of a packet, whose other bytes are written. All threads of one group. The last packet counts the step: no
// group reads it any more.
template <typename Group>
ISTHMUS_DEVICE void seal(Group& group, const EncodeJobBase& job) {
  write_header(group, job);
  if (job.counted != nullptr && group.is_last_of(*job.sealed, job.num_pieces) && group.thread() == 0) {
    ++job.counted->step;
  }
}

// Reports a fault if `bad` is true in some thread. A barrier.
template <typename Group>
ISTHMUS_DEVICE void report(Group& group, bool bad, int64_t packet, FaultKind kind, DeviceFault* fault,
                           DecodeState* state) {
  if (group.any(bad) && group.thread() == 0) {
    group.fetch_min(fault->code, DeviceFault::code_of(packet, kind));
    group.fetch_or(state->refused, 1U);
  }
}

// Compares a packet's header and checksum with what is expected. All threads of a group.
template <typename Group>
ISTHMUS_DEVICE void check_header(Group& group, const DecodeJobBase& job, int64_t packet) {
  const auto* words = reinterpret_cast<const uint64_t*>(job.packets + packet * job.packet_bytes);
  const HeaderWords expected = in_context(of_packet(job.header, job.senders, packet), job.context);
  bool differs = false;
  for (int i = 0; i < kHeaderChecksum; ++i) {
    differs |= words[i] != expected.word[i];
  }
  report(group, differs, packet, FaultKind::kHeader, job.fault, job.state);
  report(group, words[kHeaderChecksum] != sum_parts(group, job.parts, packet), packet, FaultKind::kChecksum, job.fault,
         job.state);
}

// Copies a fault to memory that the host sees, unless that has one already. One thread.
template <typename Group>
ISTHMUS_DEVICE void copy_fault(Group& group, const DeviceFault& fault, DeviceFault& mapped) {
  if (mapped.reported == 0) {
    mapped.code = fault.code;
    mapped.received = fault.received;
    mapped.expected = fault.expected;
    group.publish(mapped.reported, 1U);
  }
}

// Adds the header of a packet that was refused, for the host. All threads of one group.
template <typename Group>
ISTHMUS_DEVICE void finish_fault(Group& group, const DecodeJobBase& job) {
  DeviceFault* fault = job.fault;
  if (fault->code == DeviceFault::kNone || fault->reported != 0) {
    return;
  }
  const int64_t packet = fault->code / DeviceFault::kKinds;
  const uint64_t checksum = sum_parts(group, job.parts, packet);
  if (group.thread() == 0) {
    fault->expected = in_context(of_packet(job.header, job.senders, packet), job.context);
    fault->expected.word[kHeaderChecksum] = checksum;
    for (int i = 0; i < kHeaderWords; ++i) {
      fault->received.word[i] = reinterpret_cast<const uint64_t*>(job.packets + packet * job.packet_bytes)[i];
    }
    group.publish(fault->reported, 1U);
    if (job.mapped_fault != nullptr) {
      copy_fault(group, *fault, *job.mapped_fault);
    }
  }
}

// The end of a decoding, in one group, all threads: counts the step, and adds the header of a packet that was refused,
// for the host.
template <typename Group>
ISTHMUS_DEVICE void finish_decoding(Group& group, const DecodeJobBase& job) {
  finish_fault(group, job);
  if (job.counted != nullptr) {
    group.sync();
    if (group.thread() == 0) {
      ++job.counted->step;
    }
  }
}
// The end of an encoding: the checksum of a packet, whose other bytes are written; the last group writes the header.
struct Seal {
  static constexpr int kThreads = kChecksumThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  EncodeJobBase job;  // the packet begins at a multiple of 16 bytes; `arrived` is 0

  Moved moved() const { return {job.packet_bytes, 0}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    checksum_packet(group, job.packet, job.packet_bytes, 0, job.parts);
    if (group.is_last(*job.arrived)) {
      seal(group, job);
    }
  }
};

// The checksums of all packets, which begin at multiples of 16 bytes; the last group compares them and the headers, and
// reports. For packets that are used before they are verified.
struct Verify {
  static constexpr int kThreads = kChecksumThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  DecodeJobBase job;

  Moved moved() const { return {job.bytes_of_packets(), 0}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (job.fault->reported != 0) {
      return;
    }
    for (int64_t i = 0; i < job.num_packets; ++i) {
      const int64_t packet = job.place_of(i);
      checksum_packet(group, job.packets + packet * job.packet_bytes, job.packet_bytes, packet, job.parts);
    }
    if (group.is_last(job.state->arrived)) {
      for (int64_t i = 0; i < job.num_packets; ++i) {
        check_header(group, job, job.place_of(i));
      }
      group.sync();  // all threads see what the last check has reported
      finish_decoding(group, job);
    }
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
