#include "codec/quant/type.h"

#include <algorithm>
#include <array>

#include "base/option_rows.h"
#include "codec/passes_codec.h"
#include "codec/quant/device.h"
#include "codec/quant/host.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

constexpr std::array<int64_t, 5> kWidths = {8, 4, 3, 2, 1};  // of codes, in bits
constexpr double kBitsOfScale = 16;

std::vector<CodecOption> options() {
  const auto is_width = [](int64_t bits) { return std::ranges::find(kWidths, bits) != kWidths.end(); };
  const auto is_group = [](int64_t elements) { return rows::is_power_of_two(elements, 32, 512); };
  return {
      {.field = rows::number_field("bits", "ISTHMUS_BITS", &Options::bits, "1, 2, 3, 4 or 8",
                                   "Bits of each element's code.", is_width)},
      {.field = rows::number_field("group_elements", "ISTHMUS_GROUP_ELEMENTS", &Options::group_elements,
                                   "a power of two from 32 to 512", "Neighbouring elements with one scale.", is_group)},
      {.field = rows::switch_field("rotate", "ISTHMUS_ROTATE", &Options::rotate,
                                   "Rotate groups by a randomised Hadamard transform.")},
      {.field = rows::choice_field("scale", "ISTHMUS_SCALE", &Options::scale, {"absmax", "least_error", "unbiased"},
                                   "absmax, least_error or unbiased", "What a group's scale is chosen for.")},
      {.field = rows::choice_field("scale_type", "ISTHMUS_SCALE_TYPE", &Options::scale_type, {"bf16", "fp32"},
                                   "bf16 or fp32", "What a group's scale is sent as.")},
      {.field = rows::choice_field("rounding", "ISTHMUS_ROUNDING", &Options::rounding, {"nearest", "stochastic"},
                                   "nearest or stochastic", "How values are rounded to levels.")},
      {.field = rows::choice_field("error_feedback", "ISTHMUS_ERROR_FEEDBACK", &Options::error_feedback,
                                   {"codec", "on", "off"}, "codec, on or off",
                                   "Whether what was not sent is added to the next gradient; codec: not with quant.")},
  };
}

std::unique_ptr<Codec> make_on_host(const Options& options, DataType /*wire_dtype*/, int /*ranks_per_node*/) {
  return std::make_unique<QuantCodec>(options);
}

std::unique_ptr<Codec> make_on_device(const Options& options, DataType /*wire_dtype*/, int /*ranks_per_node*/,
                                      Device& device) {
  return make_passes_codec(QuantDevice(options), device);
}

double wire_bits(DataType /*dtype*/, const Options& options) {
  const double bits_of_scale = (options.scale_type == "fp32" ? 2.0 : 1.0) * kBitsOfScale;
  return static_cast<double>(options.bits) + bits_of_scale / static_cast<double>(options.group_elements);
}

// Of codes with equal steps for values that are spread like a normal distribution, as rotated ones are: Max,
// "Quantizing for minimum distortion", IRE Transactions on Information Theory, 1960, table II; 8 bits computed in the
// same way.
double normal_error(int64_t bits) {
  switch (bits) {
    case 1:
      return .3634;
    case 2:
      return .1188;
    case 3:
      return .03744;
    case 4:
      return .01154;
    default:
      return .0000877;
  }
}

double prior_error(const Options& options) {
  // What gradients that are not rotated, and stochastic rounding, had over that.
  constexpr double kUnrotated = 1.5;
  constexpr double kStochastic = 3;
  double error = normal_error(options.bits) * (options.rotate ? 1 : kUnrotated) *
                 (options.rounding == "stochastic" ? kStochastic : 1);
  if (options.scale == "unbiased") {
    error /= std::max(1 - error, .01);  // its scale is larger by 1 / (1 - error)
  }
  return error;
}

}  // namespace

const CodecType& quant_type() {
  static const CodecType type = {.id = CodecId::kQuant,
                                 .name = "quant",
                                 .options = options(),
                                 .make_on_host = make_on_host,
                                 .make_on_device = make_on_device,
                                 .wire_bits = wire_bits,
                                 .prior_error = prior_error,
                                 .checksum_of = "bytes"};
  return type;
}

}  // namespace isthmus
