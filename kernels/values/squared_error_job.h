// One measurement of what a codec dropped, on a device.
#pragma once

#include <cstdint>

namespace isthmus::kernels {

// How a measurement is cut, whatever the device: sums do not depend on how many groups run at once.
inline constexpr int64_t kSquaredErrorParts = 1024;

struct SquaresOf {
  double given;
  double dropped;
};

struct SquaredErrorJob {
  const float* given;
  const float* decoded;
  int64_t num_elements;
  SquaresOf* parts;     // kSquaredErrorParts, scratch memory
  double* given_total;  // where the host sees them: what was found is added
  double* dropped_total;
};

}  // namespace isthmus::kernels
