#include "codec/none/type.h"

#include "codec/none/device.h"
#include "codec/none/host.h"
#include "codec/passes_codec.h"

namespace isthmus {
namespace {

std::unique_ptr<Codec> make_on_host(const Options& /*options*/, DataType wire_dtype, int ranks_per_node) {
  return std::make_unique<NoneCodec>(wire_dtype, ranks_per_node);
}

std::unique_ptr<Codec> make_on_device(const Options& /*options*/, DataType wire_dtype, int ranks_per_node,
                                      Device& device) {
  return make_passes_codec(NoneDevice(wire_dtype, ranks_per_node), device);
}

double wire_bits(DataType dtype, const Options& /*options*/) { return 8.0 * static_cast<double>(element_bytes(dtype)); }

double prior_error(const Options& /*options*/) { return 0; }

}  // namespace

const CodecType& none_type() {
  static const CodecType type = {.id = CodecId::kNone,
                                 .name = "none",
                                 .make_on_host = make_on_host,
                                 .make_on_device = make_on_device,
                                 .wire_bits = wire_bits,
                                 .prior_error = prior_error,
                                 .checksum_of = "values"};
  return type;
}

}  // namespace isthmus
