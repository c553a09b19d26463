// Settings, shapes, layouts and headers of codec `quant`, shared by its executors.
#pragma once

#include <cstdint>

#include "isthmus/codec.h"
#include "isthmus/packet_header.h"
#include "kernels/quant/layout.h"

namespace isthmus {

// The settings in `options` of codec quant. Throws OptionError if one of them is out of its range, and for bits=0: the
// caller has to choose the bits.
kernels::QuantSettings quant_settings(const Options& options);
bool quant_keeps_residual(const Options& options);

kernels::QuantShape quant_shape(const kernels::QuantSettings& settings, int64_t num_elements);
kernels::QuantLayout quant_layout(const kernels::QuantSettings& settings, const kernels::QuantShape& shape);
int64_t quant_scale_bytes(const kernels::QuantSettings& settings);  // of one group

// All of a packet's header but the checksum.
PacketHeader make_quant_header(const kernels::QuantSettings& settings, int64_t num_elements, PacketContext context);

// Throw Error where a caller's buffers have the wrong type or size.
void check_quant_piece(ConstBuffer piece, ConstBuffer residual, bool keeps_residual, ConstBuffer packet,
                       int64_t packet_bytes);
void check_quant_packets(ConstBuffer packets, int64_t num_packets, ConstBuffer out, int64_t packet_bytes);

}  // namespace isthmus
