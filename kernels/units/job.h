// The comparison of the units that ranks tell each other, on a device. See Device::refuse_other_units().
#pragma once

#include <cstdint>

#include "kernels/block/device.h"

namespace isthmus::kernels {

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
