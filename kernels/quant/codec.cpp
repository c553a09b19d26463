#include "base/option_rows.h"
#include "codec/passes_codec.h"
#include "codec/registry.h"
#include "kernels/quant/host.h"
#include "kernels/quant/job.h"
#include "kernels/quant/settings.h"

namespace isthmus {
namespace {

// A maker (passes_codec.h), from the options of QuantCodec. Packets, residuals and sums have the bits of QuantCodec's,
// except for which NaN a sum is. Pieces are float32, bfloat16 or float16, and are encoded as if widened to float32.
// Residuals and sums are float32.
class QuantMaker {
 public:
  static constexpr const char* kName = "quant";
  static constexpr int64_t kAlignment = 64;
  static constexpr bool kIsExact = false;

  explicit QuantMaker(const Options& options)
      : bits_(quant_bits(options)), keeps_residual_(quant_keeps_residual(options)) {}

  int64_t packet_bytes(int64_t num_elements) const { return quant_layout(bits_, quant_shape(num_elements)).end; }
  bool keeps_residual() const { return keeps_residual_; }

  kernels::QuantEncodeJob plan_encode(int64_t num_elements, PacketContext context) const {
    auto job = plan<kernels::QuantEncodeJob>(num_elements, context);
    job.sender = context.sender;
    return job;
  }
  kernels::QuantDecodeJob plan_decode(int64_t num_elements, PacketContext context) const {
    return plan<kernels::QuantDecodeJob>(num_elements, context);
  }

  void check_piece(ConstBuffer piece, ConstBuffer residual, ConstBuffer packet) const {
    check_float32_piece(kName, widened(piece), residual, keeps_residual_, packet, packet_bytes(piece.num_elements));
  }
  static void check_sum(ConstBuffer out, bool /*is_shard*/) { check_float32_sum(kName, widened(out)); }
  template <typename Job>
  static void carve(Carver& /*carver*/, Job& /*job*/) {}

 private:
  // What jobs of encoding and of decoding share.
  template <typename Job>
  Job plan(int64_t num_elements, PacketContext context) const {
    Job job = {};
    job.bits = bits_;
    job.shape = quant_shape(num_elements);
    job.layout = quant_layout(bits_, job.shape);
    job.packet_bytes = job.layout.end;
    job.header = header_words(make_quant_header(bits_, num_elements, context));
    job.segment = context.segment;
    return job;
  }

  int bits_;
  bool keeps_residual_;
};

std::vector<CodecOption> quant_options() {
  return {
      {.field = rows::number_field("bits", &Options::bits, "1 to 8", "Bits of each element's code.",
                                   [](int64_t bits) { return 1 <= bits && bits <= 8; })},
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
          -> std::unique_ptr<Codec> { return make_passes_codec(QuantMaker(options), device); },
      .checksum_of = "bytes"};
  return type;
}

}  // namespace isthmus
