#include "base/option_rows.h"
#include "codec/passes_codec.h"
#include "codec/registry.h"
#include "codec/tagc/device.h"
#include "codec/tagc/host.h"
#include "codec/tagc/settings.h"

namespace isthmus {
namespace {

using kernels::FaultKind;

std::vector<CodecOption> tagc_options() {
  const auto is_share = [](double value) { return value >= 0 && value < 1; };
  const auto is_ratio = [](double value) { return value == 0 || (value >= 1 && value <= 64); };
  return {
      {.field = rows::number_field("sparsity", &Options::sparsity, "at least 0, less than 1",
                                   "The share of elements that is not sent.", is_share)},
      {.field = rows::number_field(
           "ratio", &Options::ratio, "1 to 64, or 0",
           "Blocks of a piece for each row of its sketch; 0: as many rows as what is kept needs.", is_ratio)},
      {.field = rows::choice_field("cell_type", &Options::cell_type, {kCellTypes.begin(), kCellTypes.end()},
                                   "What the cells of a sketch hold.")},
      {.field = {.name = "error_feedback"}, .shapes_packets = false},  // it may not be off
  };
}

const char* fault_text(uint32_t kind) {
  switch (static_cast<FaultKind>(kind)) {
    case FaultKind::kFlags:
      return "a block past the last is flagged";
    case FaultKind::kIndex:
      return "an element past the last is marked";
    case FaultKind::kEmptyBlock:
      return "a flagged block marks no element";
    case FaultKind::kDoesNotPeel:
      return "its index does not peel";
    case FaultKind::kCellsLeft:
      return "its sketch holds more than the index says";
    default:
      return nullptr;
  }
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
      .header_parts = {{"cell type", 24, 8}},
      .fault_text = fault_text};
  return type;
}

}  // namespace isthmus
