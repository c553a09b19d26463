// One encoding or decoding of codec `none` on a device.
#pragma once

#include <cstdint>

#include "kernels/block/job.h"

namespace isthmus::kernels {

// The piece has the wire type or the type that accumulates it. The packet is 8-byte aligned. There is no residual, and
// nothing is counted.
struct NoneEncodeJob : EncodeJobBase {
  DataType wire_dtype;
  int divisor;  // of the values on the wire: a power of two
};

// `own` and `out` have the wire type or the type that accumulates it. Packets are 8-byte aligned.
struct NoneDecodeJob : DecodeJobBase {
  int64_t num_elements;  // of a packet
  DataType wire_dtype;
  int divisor;
};

}  // namespace isthmus::kernels
