#include "codec/quant/settings.h"

#include <bit>

#include "isthmus/error.h"

namespace isthmus {

using kernels::QuantLayout;
using kernels::QuantScale;
using kernels::QuantScaleType;
using kernels::QuantSettings;
using kernels::QuantShape;

namespace {

constexpr int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// Both names are valid: Options::validate() saw them.
QuantScale scale_named(const std::string& name) {
  return name == "absmax" ? QuantScale::kAbsmax : name == "unbiased" ? QuantScale::kUnbiased : QuantScale::kLeastError;
}

QuantScaleType scale_type_named(const std::string& name) {
  return name == "fp32" ? QuantScaleType::kFloat32 : QuantScaleType::kBFloat16;
}

}  // namespace

QuantSettings quant_settings(const Options& options) {
  options.validate();
  ISTHMUS_CHECK(OptionError, options.bits != 0,
                "option bits=\"0\": codec quant was made before its bits were chosen; expected 1, 2, 3, 4 or 8");
  QuantSettings settings;
  settings.bits = static_cast<int>(options.bits);
  settings.group_elements = static_cast<int>(options.group_elements);
  settings.rotate = options.rotate;
  settings.stochastic = options.rounding == "stochastic";
  settings.scale = scale_named(options.scale);
  settings.scale_type = scale_type_named(options.scale_type);
  return settings;
}

bool quant_keeps_residual(const Options& options) { return options.error_feedback == "on"; }

QuantShape quant_shape(const QuantSettings& settings, int64_t num_elements) {
  QuantShape shape;
  shape.num_elements = num_elements;
  shape.num_groups = num_elements / settings.group_elements;
  shape.tail_elements = num_elements % settings.group_elements;
  shape.num_blocks = divide_up(shape.num_groups * settings.group_elements, kernels::kQuantBlockElements);
  return shape;
}

int64_t quant_scale_bytes(const QuantSettings& settings) {
  return settings.scale_type == QuantScaleType::kFloat32 ? 4 : 2;
}

QuantLayout quant_layout(const QuantSettings& settings, const QuantShape& shape) {
  constexpr int64_t kSectionBytes = 64;  // every section begins at a multiple of this
  const auto round_up = [](int64_t bytes) { return divide_up(bytes, kSectionBytes) * kSectionBytes; };
  QuantLayout layout = {};
  layout.scales = round_up(sizeof(PacketHeader));
  layout.codes = layout.scales + round_up(shape.num_groups * quant_scale_bytes(settings));
  layout.tail = layout.codes + shape.num_blocks * kernels::kQuantLanes * settings.bits * 4;
  layout.end = layout.tail + round_up(shape.tail_elements * 4);
  return layout;
}

PacketHeader make_quant_header(const QuantSettings& settings, int64_t num_elements, PacketContext context) {
  PacketHeader header;
  header.codec = CodecId::kQuant;
  header.dtype = DataType::kFloat32;
  header.unit_hash = context.unit_hash;
  header.step = context.step;
  header.segment = context.segment;
  header.sender = context.sender;
  header.num_elements = static_cast<uint64_t>(num_elements);
  header.settings = static_cast<uint64_t>(settings.bits) |
                    static_cast<uint64_t>(std::countr_zero(static_cast<unsigned>(settings.group_elements))) << 8 |
                    static_cast<uint64_t>(settings.rotate) << 16 | static_cast<uint64_t>(settings.stochastic) << 17 |
                    static_cast<uint64_t>(settings.scale) << 18 | static_cast<uint64_t>(settings.scale_type) << 20;
  return header;
}

void check_quant_piece(ConstBuffer piece, ConstBuffer residual, bool keeps_residual, ConstBuffer packet,
                       int64_t packet_bytes) {
  ISTHMUS_CHECK(Error, piece.dtype == DataType::kFloat32, "codec quant encodes float32 pieces, not ",
                to_string(piece.dtype));
  ISTHMUS_CHECK(Error, !keeps_residual || residual.dtype == DataType::kFloat32,
                "codec quant keeps float32 residuals, not ", to_string(residual.dtype));
  const int64_t residual_elements = keeps_residual ? piece.num_elements : 0;
  ISTHMUS_CHECK(Error, residual.num_elements == residual_elements, "codec quant: residual of ", residual.num_elements,
                " elements where ", residual_elements, " are needed");
  ISTHMUS_CHECK(Error, packet.bytes() == packet_bytes, "codec quant: packet of ", packet.bytes(), " bytes where ",
                packet_bytes, " are needed");
}

void check_quant_packets(ConstBuffer packets, int64_t num_packets, ConstBuffer out, int64_t packet_bytes) {
  ISTHMUS_CHECK(Error, out.dtype == DataType::kFloat32, "codec quant decodes to float32, not ", to_string(out.dtype));
  ISTHMUS_CHECK(Error, packets.bytes() == num_packets * packet_bytes, "codec quant: ", packets.bytes(), " bytes for ",
                num_packets, " packets of ", packet_bytes);
}

}  // namespace isthmus
