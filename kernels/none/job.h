// One encoding or decoding of codec `none` on a device. As kernels/tagc/job.h.
#pragma once

#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/device.h"

namespace isthmus::kernels {

struct NoneEncodeJob {
  HeaderWords header;  // all but unit, step and checksum
  ConstBuffer piece;   // of the wire type, or of the type that accumulates it
  DataType wire_dtype;
  int divisor;  // of the values on the wire: a power of two
  int64_t packet_bytes;

  const DeviceContext* context;
  uint8_t* packet;      // 8-byte aligned
  ChecksumParts parts;  // of one packet
};

struct NoneDecodeJob {
  HeaderWords header;  // of the first packet
  PacketSenders senders;
  Buffer out;            // of the type that accumulates the wire type
  int64_t num_elements;  // of a packet
  bool to_places;        // packet i replaces the i-th `num_elements` of out; otherwise all are added to the same
  DataType wire_dtype;
  int divisor;
  int64_t packet_bytes;

  const DeviceContext* context;
  const uint8_t* packets;  // one after another, 8-byte aligned
  int64_t num_packets;
  DeviceFault* fault;
  DeviceFault* mapped_fault;  // where the host sees it, too; may be null
  DecodeState* state;
  ChecksumParts parts;
};

}  // namespace isthmus::kernels
