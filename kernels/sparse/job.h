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

  uint32_t* arrived;  // groups at the end of the last pass; the first sets it to 0
};

// `out` is float32. Packets are 16-byte aligned.
struct SparseDecodeJob : DecodeJobBase {
  SparseShape shape;
  SparseLayout layout;
};

}  // namespace isthmus::kernels
