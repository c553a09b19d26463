// One encoding or decoding of codec `quant` on a device. As kernels/tagc/job.h.
#pragma once

#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/device.h"
#include "kernels/quant/layout.h"

namespace isthmus::kernels {

struct QuantEncodeJob {
  QuantSettings settings;
  QuantShape shape;
  QuantLayout layout;
  HeaderWords header;  // all but unit, step and checksum
  uint64_t segment;
  uint64_t sender;

  const DeviceContext* context;
  ConstBuffer piece;  // float32, or a 16-bit type that it has been summed in
  float* residual;    // null: no error feedback
  uint8_t* packet;    // 64-byte aligned
  DeviceCounts* counts;

  uint32_t* arrived;
  ChecksumParts parts;  // of one packet
};

struct QuantDecodeJob {
  QuantSettings settings;
  QuantShape shape;
  QuantLayout layout;
  HeaderWords header;  // of the first packet
  PacketSenders senders;
  uint64_t segment;

  const DeviceContext* context;
  const uint8_t* packets;  // one after another, 64-byte aligned
  int64_t num_packets;
  bool to_places;  // packet i replaces the i-th num_elements of out; otherwise all are added to the same
  float* out;
  DeviceFault* fault;
  DeviceFault* mapped_fault;  // where the host sees it, too; may be null

  DecodeState* state;
  ChecksumParts parts;
};

}  // namespace isthmus::kernels
