// The values of a packet's header that change from step to step, in memory that a device's codecs read.
#pragma once

#include <cstdint>

namespace isthmus {

// Whose packets are encoded and decoded: two members of PacketContext. In device memory, so that a captured graph needs
// no new arguments: the owner counts `step` there.
struct DeviceContext {
  uint64_t unit_hash = 0;
  uint64_t step = 0;
};

}  // namespace isthmus
