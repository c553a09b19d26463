#include "codec/device_codecs.h"

#include "codec/none/device.h"
#include "codec/passes_codec.h"
#include "codec/quant/device.h"
#include "codec/sparse/device.h"
#include "codec/tagc/device.h"
#include "isthmus/error.h"

namespace isthmus {

namespace {

template <typename JobMaker>
std::unique_ptr<Codec> make_passes_codec(JobMaker maker, const PassesOfDevice& device) {
  return std::make_unique<PassesCodec<JobMaker>>(std::move(maker), device);
}

}  // namespace

std::unique_ptr<Codec> make_device_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                         int ranks_per_node, DeviceLauncher& launcher, kernels::DeviceCounts* counts,
                                         kernels::DeviceFault* fault) {
  const PassesOfDevice device = {launcher, counts, fault};
  if (name == "none") {
    return make_passes_codec(NoneDevice(wire_dtype, ranks_per_node), device);
  }
  if (name == "tagc") {
    return make_passes_codec(TagcDevice(options), device);
  }
  if (name == "quant") {
    return make_passes_codec(QuantDevice(options), device);
  }
  if (name == "sparse") {
    return make_passes_codec(SparseDevice(options), device);
  }
  throw OptionError(detail::concatenate("codec \"", name, "\" is unknown: expected none, tagc, quant or sparse"));
}

}  // namespace isthmus
