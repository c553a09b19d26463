// One encoding or decoding of codec `quant` on a device.
#pragma once

#include <cstdint>

#include "kernels/block/job.h"
#include "kernels/quant/layout.h"

namespace isthmus::kernels {

// The piece is float32, or a 16-bit type that it has been summed in. The packet is 64-byte aligned.
struct QuantEncodeJob : EncodeJobBase {
  int bits;  // of a code
  QuantShape shape;
  QuantLayout layout;
  uint64_t segment;
  uint64_t sender;
};

// `own` and `out` are float32 or a 16-bit type. Packets are 64-byte aligned.
struct QuantDecodeJob : DecodeJobBase {
  int bits;  // of a code
  QuantShape shape;
  QuantLayout layout;
  uint64_t segment;
};

}  // namespace isthmus::kernels
