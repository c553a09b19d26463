// Encodes and decodes with tagc's passes on an emulated device.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/tagc/device.h"
#include "tests/cpp/support/on_device.h"

namespace isthmus {

inline constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7, .sender = 5};
inline constexpr Cut kCuts[] = {{1, 1}, {7, 3}, {32, 2}, {33, 5}, {128, 4}};

inline Options options_of(double ratio, double sparsity) {
  Options options;
  options.ratio = ratio;
  options.sparsity = sparsity;
  return options;
}

inline Encoded encode_on_device(const Options& options, ConstBuffer piece, const std::vector<float>& residual,
                                PacketContext context, Cut cut, TagcLimits limits = {}) {
  const auto run = [](EmulatedDevice& device, const kernels::TagcEncodeJob& job) {
    kernels::emulated::run_passes(device, job);
  };
  return encode_with(TagcDevice(options, limits), run, piece, residual, context, cut);
}

inline Encoded encode_on_device(const Options& options, const std::vector<float>& piece,
                                const std::vector<float>& residual, PacketContext context, Cut cut,
                                TagcLimits limits = {}) {
  return encode_on_device(options, buffer_of(piece), residual, context, cut, limits);
}

inline kernels::DeviceFault decode_on_device(const Options& options, const std::vector<uint8_t>& packets,
                                             int num_packets, std::vector<float>& out, PacketContext context, Cut cut,
                                             TagcLimits limits = {}) {
  const auto run = [](EmulatedDevice& device, const kernels::TagcDecodeJob& job) {
    kernels::emulated::run_passes(device, job);
  };
  return decode_with(TagcDevice(options, limits), run, packets, num_packets, buffer_of(out), /*to_places=*/false,
                     context, cut);
}

}  // namespace isthmus
