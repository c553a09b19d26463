#include "codec/none/device.h"
#include "codec/none/host.h"
#include "codec/passes_codec.h"
#include "codec/registry.h"

namespace isthmus {

const CodecType& none_type() {
  static const CodecType type = {.id = CodecId::kNone,
                                 .name = "none",
                                 .make_on_host = [](const Options& /*options*/, DataType wire_dtype,
                                                    int ranks_per_node) -> std::unique_ptr<HostCodec> {
                                   return std::make_unique<NoneCodec>(wire_dtype, ranks_per_node);
                                 },
                                 .make_on_device = [](const Options& /*options*/, DataType wire_dtype,
                                                      int ranks_per_node, Device& device) -> std::unique_ptr<Codec> {
                                   return make_passes_codec(NoneDevice(wire_dtype, ranks_per_node), device);
                                 },
                                 .checksum_of = "values"};
  return type;
}

}  // namespace isthmus
