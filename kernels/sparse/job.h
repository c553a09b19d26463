// One encoding or decoding of codec `sparse` on a device. As kernels/tagc/job.h.
#pragma once

#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/device.h"
#include "kernels/sparse/layout.h"

namespace isthmus::kernels {

struct SparseEncodeJob {
  SparseShape shape;
  SparseLayout layout;
  HeaderWords header;  // all but unit, step and checksum

  const DeviceContext* context;
  ConstBuffer piece;  // float32, or a 16-bit type that it has been summed in
  float* residual;    // null: none
  uint8_t* packet;    // 16-byte aligned
  DeviceCounts* counts;

  ChecksumParts parts;  // of one packet
  uint32_t* arrived;    // groups at the end of the last pass; the first sets it to 0
};

struct SparseDecodeJob {
  SparseShape shape;
  SparseLayout layout;
  HeaderWords header;  // of the first packet
  PacketSenders senders;

  const DeviceContext* context;
  const uint8_t* packets;  // one after another, 16-byte aligned
  int64_t num_packets;
  bool to_places;  // packet i replaces the i-th num_elements of out; otherwise all are added to the same
  float* out;
  DeviceFault* fault;
  DeviceFault* mapped_fault;  // where the host sees it, too; may be null

  DecodeState* state;
  ChecksumParts parts;
};

}  // namespace isthmus::kernels
