// Headers and checksums of packets on many groups, common to all codecs.
#pragma once

#include "kernels/block/checksum_passes.h"
#include "kernels/block/device.h"
#include "kernels/block/job.h"
#include "kernels/block/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

ISTHMUS_DEVICE HeaderWords in_context(HeaderWords header, const DeviceContext* context) {
  if (context != nullptr) {
    header.word[kHeaderUnit] = context->unit_hash;
    header.word[kHeaderStep] = context->step;
  }
  return header;
}

// The header of one packet; `header` is that of the first.
ISTHMUS_DEVICE HeaderWords of_packet(HeaderWords header, const PacketSenders& senders, int64_t packet) {
  header.word[kHeaderElements] += (senders.of_packet(packet) - senders.first) << kHeaderSenderBit;
  return header;
}

// Writes the header of a packet whose other bytes are written. All threads of one group call it.
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

// Clears the counters of a piece. The first pass of an encoding calls it, by one thread for each piece.
ISTHMUS_DEVICE void begin_counting(const EncodeJobBase& job) {
  *job.arrived = 0;
  if (job.is_first_piece) {
    *job.sealed = 0;
  }
}

// Ends a packet whose other bytes are written. All threads of one group call it. The last packet counts the step,
// because no group reads it any more.
template <typename Group>
ISTHMUS_DEVICE void seal(Group& group, const EncodeJobBase& job) {
  write_header(group, job);
  if (job.counted != nullptr && group.is_last_of(*job.sealed, job.num_pieces) && group.thread() == 0) {
    ++job.counted->step;
  }
}

// Reports a fault if `bad` is true in some thread, and returns whether it is. A barrier.
template <typename Group>
ISTHMUS_DEVICE bool report(Group& group, bool bad, int64_t packet, FaultKind kind, DeviceFault* fault) {
  const bool is_bad = group.any(bad);
  if (is_bad && group.thread() == 0) {
    group.fetch_min(fault->code, DeviceFault::code_of(packet, kind));
  }
  return is_bad;
}

// Compares a packet's header and checksum with the expected ones, and returns whether they differ. All threads of a
// group call it.
template <typename Group>
ISTHMUS_DEVICE bool check_header(Group& group, const DecodeJobBase& job, int64_t packet) {
  const auto* words = reinterpret_cast<const uint64_t*>(job.packets + packet * job.packet_bytes);
  const HeaderWords expected = in_context(of_packet(job.header, job.senders, packet), job.context);
  bool differs = false;
  for (int i = 0; i < kHeaderChecksum; ++i) {
    differs |= words[i] != expected.word[i];
  }
  const bool is_other = report(group, differs, packet, FaultKind::kHeader, job.fault);
  const bool is_damaged = words[kHeaderChecksum] != sum_parts(group, job.parts, packet);
  return report(group, is_damaged, packet, FaultKind::kChecksum, job.fault) || is_other;
}

// Copies a fault to memory that the host sees, unless a fault is there already. One thread calls it.
template <typename Group>
ISTHMUS_DEVICE void copy_fault(Group& group, const DeviceFault& fault, DeviceFault& mapped) {
  if (mapped.reported == 0) {
    mapped.code = fault.code;
    mapped.received = fault.received;
    mapped.expected = fault.expected;
    group.publish(mapped.reported, 1U);
  }
}

// Adds the header of a refused packet, for the host. All threads of one group call it.
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

// Ends a decoding: counts the step, and adds the header of a refused packet for the host. All threads of one group call
// it.
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

// Ends an encoding: takes the checksum of a packet's other bytes, or what is missing of it. The last group writes the
// header.
struct Seal {
  static constexpr int kThreads = kChecksumThreads;

  EncodeJobBase job;  // `arrived` is 0
  SummedBytes summed = {};

  Moved moved() const { return {job.packet_bytes - summed.size(), 0}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    checksum_packet(group, job.packet, job.packet_bytes, summed, 0, job.parts);
    if (group.is_last(*job.arrived)) {
      seal(group, job);
    }
  }
};

// Takes the checksums of all packets, or what is missing of them. The last group compares checksums and headers, and
// reports. For packets that are used before they are verified.
struct Verify {
  static constexpr int kThreads = kChecksumThreads;

  DecodeJobBase job;
  SummedBytes summed = {};

  Moved moved() const { return {job.bytes_of_packets() - job.num_packets * summed.size(), 0}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (job.fault->reported != 0) {
      return;
    }
    for (int64_t i = 0; i < job.num_packets; ++i) {
      const int64_t packet = job.place_of(i);
      checksum_packet(group, job.packets + packet * job.packet_bytes, job.packet_bytes, summed, packet, job.parts);
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
