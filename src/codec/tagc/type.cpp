#include "codec/tagc/type.h"

#include <algorithm>

#include "base/option_rows.h"
#include "codec/dropping.h"
#include "codec/passes_codec.h"
#include "codec/tagc/device.h"
#include "codec/tagc/host.h"

namespace isthmus {
namespace {

using kernels::FaultKind;

std::vector<CodecOption> options() {
  const auto is_ratio = [](double value) { return value == 0 || (value >= 1 && value <= 64); };
  const auto is_block = [](int64_t elements) { return elements == 0 || rows::is_power_of_two(elements, 64, 4096); };
  return {
      {.field = rows::number_field(
           "ratio", "ISTHMUS_RATIO", &Options::ratio, "1 to 64, or 0",
           "Blocks of a piece for each row of its sketch; 0: as many rows as what is kept needs.", is_ratio)},
      {.field =
           rows::choice_field("cell_type", "ISTHMUS_CELL_TYPE", &Options::cell_type, {"fp32", "bf16", "fp16", "int8"},
                              "fp32, bf16, fp16 or int8", "What the cells of a sketch hold.")},
      {.field = rows::number_field("index_bits", "ISTHMUS_INDEX_BITS", &Options::index_bits, "1 or 4",
                                   "1 merges indexes by bitwise or, 4 counts (to 15 ranks).",
                                   [](int64_t value) { return value == 1 || value == 4; }),
       .only = "tiers=flat",
       .shapes_packets = false},  // there are none in a single tier
      {.field = rows::number_field(
           "block_elements", "ISTHMUS_BLOCK_ELEMENTS", &Options::block_elements, "0 or a power of two from 64 to 4096",
           "Neighbouring elements treated together; 0: chosen from the piece's size.", is_block)},
      {.field = rows::count_field("peel_rounds", "ISTHMUS_PEEL_ROUNDS", &Options::peel_rounds, 1, 1024, "1 to 1024",
                                  "Bound on decoding rounds.")},
      {.field = {.name = "sparsity"}},
      {.field = {.name = "error_feedback"}, .shapes_packets = false},  // it may not be off
  };
}

std::unique_ptr<Codec> make_on_host(const Options& options, DataType /*wire_dtype*/, int /*ranks_per_node*/) {
  return std::make_unique<TagcCodec>(options);
}

std::unique_ptr<Codec> make_on_device(const Options& options, DataType /*wire_dtype*/, int /*ranks_per_node*/,
                                      Device& device) {
  return make_passes_codec(TagcDevice(options), device);
}

// An index, and the sketch's cells.
double wire_bits(DataType /*dtype*/, const Options& options) {
  const double rows_of_block = options.ratio > 0 ? 1 / options.ratio : std::min(1.0, 2 * (1 - options.sparsity));
  return 1 + bits_of_value(options.cell_type) * rows_of_block;
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
  static const CodecType type = {.id = CodecId::kTagc,
                                 .name = "tagc",
                                 .options = options(),
                                 .make_on_host = make_on_host,
                                 .make_on_device = make_on_device,
                                 .wire_bits = wire_bits,
                                 .prior_error = error_of_dropping,
                                 .header_parts = {{"cell type", 24, 8}},
                                 .fault_text = fault_text};
  return type;
}

}  // namespace isthmus
