#include "codec/device_codecs.h"

#include "codec/passes_codec.h"
#include "codec/registry.h"
#include "isthmus/error.h"

namespace isthmus {

std::unique_ptr<Codec> make_device_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                         int ranks_per_node, DeviceLauncher& launcher, kernels::DeviceCounts* counts,
                                         kernels::DeviceFault* fault) {
  const CodecType& type = find_codec(name);
  ISTHMUS_CHECK(OptionError, type.make_on_device != nullptr, "codec \"", name, "\" runs on the CPU alone");
  return type.make_on_device(options, wire_dtype, ranks_per_node, {launcher, counts, fault});
}

}  // namespace isthmus
