// What a pass moves between memory and the processor.
#pragma once

#include <cstdint>

namespace isthmus::kernels {

// Bytes of pieces, residuals, packets, sums and results, without headers, counters and parts of checksums.
struct Moved {
  int64_t read = 0;
  int64_t written = 0;
};

}  // namespace isthmus::kernels
