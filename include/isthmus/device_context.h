// What changes from step to step in a packet's header, where a device's codecs can read it.
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
