// Work on whole buffers of a device, and on words that change with each step. Device (isthmus/device.h) has a call for
// each job; GpuDevice checks types and sizes.
#pragma once

#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/device.h"

namespace isthmus::kernels {

// out = scale * in, with the bits of buffer.h's functions, except for which NaN a product is. Both have floating types.
// They may be the same memory of one type.
struct ConvertJob {
  ConstBuffer in;
  Buffer out;
  double scale = 1;
};

// values *= factor (float32). A product too large for float32 becomes the largest float32.
struct MultiplyJob {
  Buffer values;
  double factor;
};

// sum += values (float32).
struct AddJob {
  ConstBuffer values;
  Buffer sum;
};

// How a measurement is cut, whatever the device: sums do not depend on how many groups run at once.
inline constexpr int64_t kSquaredErrorParts = 1024;

struct SquaresOf {
  double given;
  double dropped;
};

// One measurement of what a codec dropped. Equal values give equal sums on every device.
struct SquaredErrorJob {
  const float* given;
  const float* decoded;
  int64_t num_elements;
  SquaresOf* parts;     // kSquaredErrorParts, scratch memory
  double* given_total;  // where the host sees them: what was found is added
  double* dropped_total;
};

struct DropResidualJob {
  Magnitudes* magnitudes;
  Buffer residual;  // float32
  DeviceCounts* counts;
};

struct SetContextsJob {
  DeviceContext* contexts;
  int count;
  DeviceContext value;
};

struct NextStepJob {
  DeviceContext* context;
};

// The comparison of the units that ranks tell each other. See Device::refuse_other_units().
struct RefuseUnitsJob {
  const DeviceContext* told;  // by rank: its unit, and its number in the step's place
  int64_t num_ranks;
  uint64_t unit_hash;  // this rank's own
  uint8_t* packets;    // 8-byte aligned; null: there are none
  int64_t num_packets;
  int64_t packet_bytes;
  DeviceFault* mapped_fault = nullptr;  // in memory that the host sees
};

}  // namespace isthmus::kernels
