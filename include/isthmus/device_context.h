// The header fields that change from step to step, in memory that a device's codecs read.
#pragma once

#include <cstdint>

namespace isthmus {

// Identifies packets by two members of PacketContext. It is in device memory, so that a captured graph needs no new
// arguments: `step` is counted there.
struct DeviceContext {
  uint64_t unit_hash = 0;
  uint64_t step = 0;
};

}  // namespace isthmus
