#include "kernels/quant/settings.h"

#include "codec/packet_sizes.h"

namespace isthmus {

using kernels::QuantLayout;
using kernels::QuantShape;

namespace {

// Bits 8 and up of a header's settings name the code. There is only one: groups of 2^7 elements, rotated (bit 16), with
// the unbiased scale (2 in bits 18 and 19).
constexpr uint64_t kCode = 7 << 8 | 1 << 16 | 2 << 18;

}  // namespace

int quant_bits(const Options& options) {
  options.validate();
  return static_cast<int>(options.bits);
}

bool quant_keeps_residual(const Options& options) { return options.error_feedback == ErrorFeedback::kOn; }

QuantShape quant_shape(int64_t num_elements) {
  QuantShape shape;
  shape.num_elements = num_elements;
  shape.num_groups = num_elements / kernels::kQuantGroupElements;
  shape.tail_elements = num_elements % kernels::kQuantGroupElements;
  shape.num_blocks = divide_up(shape.num_groups * kernels::kQuantGroupElements, kernels::kQuantBlockElements);
  return shape;
}

QuantLayout quant_layout(int bits, const QuantShape& shape) {
  QuantLayout layout = {};
  layout.scales = section_bytes(sizeof(PacketHeader));
  layout.codes = layout.scales + section_bytes(shape.num_groups * kQuantScaleBytes);
  layout.tail = layout.codes + shape.num_blocks * kernels::kQuantLanes * bits * 4;
  layout.end = layout.tail + section_bytes(shape.tail_elements * 4);
  return layout;
}

PacketHeader make_quant_header(int bits, int64_t num_elements, PacketContext context) {
  return make_header(CodecId::kQuant, DataType::kFloat32, num_elements, static_cast<uint64_t>(bits) | kCode, context);
}

}  // namespace isthmus
