#include "codec/passes_codec.h"
#include "codec/registry.h"
#include "kernels/none/host.h"
#include "kernels/none/job.h"

namespace isthmus {
namespace {

// A maker (passes_codec.h). Packets and sums have the bits of NoneCodec's, except for which NaN a sum is. Pieces have
// the wire type or the type that accumulates it, which sums always have.
class NoneMaker {
 public:
  static constexpr const char* kName = "none";
  static constexpr int64_t kAlignment = 8;
  static constexpr bool kIsExact = true;

  explicit NoneMaker(const NoneSettings& settings) : settings_(settings) {}

  int64_t packet_bytes(int64_t num_elements) const { return settings_.packet_bytes(num_elements); }
  static bool keeps_residual() { return false; }

  kernels::NoneEncodeJob plan_encode(int64_t num_elements, PacketContext context) const {
    return plan<kernels::NoneEncodeJob>(num_elements, context);
  }
  kernels::NoneDecodeJob plan_decode(int64_t num_elements, PacketContext context) const {
    auto job = plan<kernels::NoneDecodeJob>(num_elements, context);
    job.num_elements = num_elements;
    return job;
  }

  void check_piece(ConstBuffer piece, ConstBuffer /*residual*/, ConstBuffer packet) const {
    const DataType wire = settings_.wire_dtype;
    ISTHMUS_CHECK(Error, piece.dtype == wire || piece.dtype == accumulate_dtype(wire), "codec none: piece of ",
                  to_string(piece.dtype), " for packets of ", to_string(wire));
    check_packets(kName, packet, 1, packet_bytes(piece.num_elements));
  }
  void check_sum(ConstBuffer out, bool is_shard) const {
    const DataType wire = settings_.wire_dtype;
    ISTHMUS_CHECK(Error, out.dtype == accumulate_dtype(wire) || (is_shard && out.dtype == wire), "codec none: sums of ",
                  to_string(out.dtype), " for packets of ", to_string(wire));
  }
  template <typename Job>
  static void carve(Carver& /*carver*/, Job& /*job*/) {}

 private:
  // What jobs of encoding and of decoding share.
  template <typename Job>
  Job plan(int64_t num_elements, PacketContext context) const {
    Job job = {};
    job.header = header_words(settings_.header(num_elements, context));
    job.packet_bytes = packet_bytes(num_elements);
    job.wire_dtype = settings_.wire_dtype;
    job.divisor = settings_.divisor;
    return job;
  }

  NoneSettings settings_;
};

}  // namespace

const CodecType& none_type() {
  static const CodecType type = {
      .id = CodecId::kNone,
      .name = "none",
      .make_on_host = [](const Options& /*options*/, DataType wire_dtype, int ranks_per_node)
          -> std::unique_ptr<HostCodec> { return std::make_unique<NoneCodec>(wire_dtype, ranks_per_node); },
      .make_on_device = [](const Options& /*options*/, DataType wire_dtype, int ranks_per_node,
                           Device& device) -> std::unique_ptr<Codec> {
        return make_passes_codec(NoneMaker(NoneSettings(wire_dtype, ranks_per_node)), device);
      },
      .checksum_of = "values"};
  return type;
}

}  // namespace isthmus
