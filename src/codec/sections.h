// Sizes of packets: every section begins at a multiple of 64 bytes.
#pragma once

#include <cstdint>

namespace isthmus {

constexpr int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }
constexpr int64_t section_bytes(int64_t bytes) { return divide_up(bytes, 64) * 64; }

}  // namespace isthmus
