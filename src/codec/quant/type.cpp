#include <algorithm>
#include <array>

#include "base/option_rows.h"
#include "codec/passes_codec.h"
#include "codec/quant/device.h"
#include "codec/quant/host.h"
#include "codec/registry.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

constexpr std::array<int64_t, 5> kWidths = {8, 4, 3, 2, 1};  // of codes, in bits

std::vector<CodecOption> quant_options() {
  const auto is_width = [](int64_t bits) { return std::ranges::find(kWidths, bits) != kWidths.end(); };
  return {
      {.field =
           rows::number_field("bits", &Options::bits, "1, 2, 3, 4 or 8", "Bits of each element's code.", is_width)},
      {.field = rows::choice_field("error_feedback", &Options::error_feedback, {"codec", "on", "off"},
                                   "Whether what was not sent is added to the next gradient; codec: not with quant.")},
  };
}

}  // namespace

const CodecType& quant_type() {
  static const CodecType type = {
      .id = CodecId::kQuant,
      .name = "quant",
      .options = quant_options(),
      .make_on_host = [](const Options& options, DataType /*wire_dtype*/, int /*ranks_per_node*/)
          -> std::unique_ptr<HostCodec> { return std::make_unique<QuantCodec>(options); },
      .make_on_device = [](const Options& options, DataType /*wire_dtype*/, int /*ranks_per_node*/, Device& device)
          -> std::unique_ptr<Codec> { return make_passes_codec(QuantDevice(options), device); },
      .checksum_of = "bytes"};
  return type;
}

}  // namespace isthmus
