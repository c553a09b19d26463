#include "codec/sparse/type.h"

#include "base/option_rows.h"
#include "codec/dropping.h"
#include "codec/passes_codec.h"
#include "codec/sparse/device.h"
#include "codec/sparse/host.h"

namespace isthmus {
namespace {

using kernels::FaultKind;

std::vector<CodecOption> options() {
  const auto is_share = [](double value) { return value >= 0 && value < 1; };
  return {
      {.field = rows::number_field("sparsity", "ISTHMUS_SPARSITY", &Options::sparsity, "at least 0, less than 1",
                                   "The share of elements that is not sent.", is_share)},
      {.field = rows::choice_field("value_type", "ISTHMUS_VALUE_TYPE", &Options::value_type, {"fp32", "bf16", "int8"},
                                   "fp32, bf16 or int8", "What kept values are sent as.")},
      {.field = {.name = "error_feedback"}},
  };
}

std::unique_ptr<Codec> make_on_host(const Options& options, DataType /*wire_dtype*/, int /*ranks_per_node*/) {
  return std::make_unique<SparseCodec>(options);
}

std::unique_ptr<Codec> make_on_device(const Options& options, DataType /*wire_dtype*/, int /*ranks_per_node*/,
                                      Device& device) {
  return make_passes_codec(SparseDevice(options), device);
}

// An offset and a value of each that is kept, and four counts of a block.
double wire_bits(DataType /*dtype*/, const Options& options) {
  constexpr double kCounts = kernels::kSparseQuarters * 8 / static_cast<double>(kernels::kSparseBlockElements);
  return (1 - options.sparsity) * (8 + bits_of_value(options.value_type)) + kCounts;
}

const char* fault_text(uint32_t kind) {
  switch (static_cast<FaultKind>(kind)) {
    case FaultKind::kCounts:
      return "a block's counts do not add up to what it keeps";
    case FaultKind::kOffsets:
      return "a block's offsets do not ascend within it";
    case FaultKind::kFlaggedValues:
      return "a flagged block holds values";
    default:
      return nullptr;
  }
}

}  // namespace

const CodecType& sparse_type() {
  static const CodecType type = {.id = CodecId::kSparse,
                                 .name = "sparse",
                                 .options = options(),
                                 .make_on_host = make_on_host,
                                 .make_on_device = make_on_device,
                                 .wire_bits = wire_bits,
                                 .prior_error = error_of_dropping,
                                 .fault_text = fault_text};
  return type;
}

}  // namespace isthmus
