// Options, shapes, layouts and headers of codec `quant`, which host and device share.
#pragma once

#include <cstdint>

#include "isthmus/codec.h"
#include "isthmus/packet_header.h"
#include "kernels/quant/layout.h"

namespace isthmus {

inline constexpr int64_t kQuantScaleBytes = 2;  // of a group's scale, a bfloat16

// The bits of a code. Throws OptionError if an option is out of its range.
int quant_bits(const Options& options);
bool quant_keeps_residual(const Options& options);

kernels::QuantShape quant_shape(int64_t num_elements);
kernels::QuantLayout quant_layout(int bits, const kernels::QuantShape& shape);

// A packet's header without the checksum.
PacketHeader make_quant_header(int bits, int64_t num_elements, PacketContext context);

}  // namespace isthmus
