// One encoding or decoding of codec `sparse` on a device.
#pragma once

#include <cstdint>

#include "kernels/block/job.h"
#include "kernels/sparse/layout.h"

namespace isthmus::kernels {

// The piece is float32, or a 16-bit type that it has been summed in. The packet is 16-byte aligned.
struct SparseEncodeJob : EncodeJobBase {
  SparseShape shape;
  SparseLayout layout;
};

// `own` and `out` are float32 or a 16-bit type. Packets are 16-byte aligned.
struct SparseDecodeJob : DecodeJobBase {
  SparseShape shape;
  SparseLayout layout;
};

}  // namespace isthmus::kernels
