// One step of a reduction, for all transports that reduce on the CPU.
#pragma once

#include "isthmus/buffer.h"
#include "isthmus/transport.h"

namespace isthmus {

// accumulator[i] = accumulator[i] op in[i]. For kByte that is modulo 256 or bitwise; other types are summed by
// accumulate().
inline void combine(ConstBuffer in, ReduceOp op, Buffer accumulator) {
  if (in.dtype != DataType::kByte) {
    accumulate(in, accumulator);
    return;
  }
  const auto* from = in.as<uint8_t>();
  auto* to = accumulator.as<uint8_t>();
  for (int64_t i = 0; i < in.num_elements; ++i) {
    to[i] = static_cast<uint8_t>(op == ReduceOp::kSum ? to[i] + from[i] : to[i] | from[i]);
  }
}

}  // namespace isthmus
