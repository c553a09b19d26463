#include "base/option_rows.h"
#include "codec/passes_codec.h"
#include "codec/registry.h"
#include "kernels/tagc/device.h"
#include "kernels/tagc/host.h"
#include "kernels/tagc/settings.h"

namespace isthmus {
namespace {

std::vector<CodecOption> tagc_options() {
  const auto is_share = [](double value) { return value >= 0 && value < 1; };
  const auto is_ratio = [](double value) { return value >= 1 && value <= 64; };
  return {
      {.field = rows::number_field("sparsity", &Options::sparsity, "at least 0, less than 1",
                                   "The share of elements that is not sent.", is_share)},
      {.field = rows::number_field("ratio", &Options::ratio, "1 to 64", "Blocks of a piece for each row of its sketch.",
                                   is_ratio)},
      {.field = {.name = "error_feedback"}, .shapes_packets = false},  // it may not be off
  };
}

}  // namespace

const CodecType& tagc_type() {
  static const CodecType type = {
      .id = CodecId::kTagc,
      .name = "tagc",
      .options = tagc_options(),
      .make_on_host = [](const Options& options, DataType /*wire_dtype*/, int /*ranks_per_node*/)
          -> std::unique_ptr<HostCodec> { return std::make_unique<TagcCodec>(options); },
      .make_on_device = [](const Options& options, DataType /*wire_dtype*/, int /*ranks_per_node*/, Device& device)
          -> std::unique_ptr<Codec> { return make_passes_codec(TagcMaker(options), device); },
      .header_parts = {{"log2 of columns", 0, 8}, {"peeling rounds", 8, 16}, {"rows", 32, 32}}};
  return type;
}

}  // namespace isthmus
