// One encoding or decoding of codec `none` on a device. As tagc_job.h.
#pragma once

#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/device.h"

namespace isthmus::kernels {

struct NoneEncodeJob {
  HeaderWords header;  // all but unit, step and checksum
  ConstBuffer piece;   // of the wire type, or of the type that accumulates it
  DataType wire_dtype;
  int divisor;  // of the values on the wire: a power of two
  int64_t packet_bytes;

  const DeviceContext* context;
  uint8_t* packet;     // 8-byte aligned
  uint64_t* checksum;  // zero at the beginning
};

struct NoneDecodeJob {
  HeaderWords header;
  Buffer out;  // of the type that accumulates the wire type
  DataType wire_dtype;
  int divisor;
  int64_t packet_bytes;

  const DeviceContext* context;
  const uint8_t* packets;  // one after another, 8-byte aligned
  int64_t num_packets;
  DeviceFault* fault;
  DecodeState* state;
  uint64_t* checksums;  // num_packets; zero at the beginning, lies behind `state`
};

}  // namespace isthmus::kernels
