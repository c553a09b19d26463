// The part of an encoding and a decoding on a device that all codecs share: shapes and memory. The host knows all of it
// before the data exist: sizes follow from the shape alone, and no pass allocates.
#pragma once

#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/device.h"

namespace isthmus::kernels {

// One encoding. Each codec derives its own job, which states the alignment of packets.
struct EncodeJobBase {
  HeaderWords header;  // all but unit, step and checksum
  const DeviceContext* context;
  ConstBuffer piece;
  float* residual;  // null: no error feedback
  uint8_t* packet;
  int64_t packet_bytes;
  DeviceCounts* counts;

  ChecksumParts parts;  // of one packet
};

// One decoding of one packet or of several, one after another.
struct DecodeJobBase {
  HeaderWords header;  // of the first packet
  PacketSenders senders;
  const DeviceContext* context;
  const uint8_t* packets;
  int64_t packet_bytes;  // of each
  int64_t num_packets;
  bool to_places;  // packet i replaces the i-th of num_packets equal parts of `out`; otherwise all are added to `out`
  Buffer out;
  DeviceFault* fault;
  DeviceFault* mapped_fault;  // where the host sees it, too; may be null

  DecodeState* state;
  ChecksumParts parts;  // of all packets
};

}  // namespace isthmus::kernels
