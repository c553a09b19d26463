// Division of sizes and counts that rounds up. No value is negative.
#pragma once

#include <cstdint>

namespace isthmus {

constexpr int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }
constexpr int64_t round_up(int64_t value, int64_t multiple) { return divide_up(value, multiple) * multiple; }

}  // namespace isthmus
