// Codec `tagc` on a device: what the host has to know and decide. The work itself is kernels/tagc/sequence.h.
#pragma once

#include <cstdint>

#include "codec/device_arguments.h"
#include "codec/tagc/settings.h"
#include "kernels/tagc/job.h"

namespace isthmus {

// A JobMaker (passes_codec.h). All sizes follow from the number of elements and the options. Packets, residuals and
// sums are those of TagcCodec, bit for bit, except for which NaN a sum is.
class TagcDevice {
 public:
  static constexpr const char* kName = "tagc";

  // As TagcCodec.
  explicit TagcDevice(const Options& options) : settings_(options) {}

  int64_t packet_bytes(int64_t num_elements) const;
  static bool keeps_residual() { return true; }
  int64_t encode_scratch_bytes(int64_t num_elements) const;
  int64_t decode_scratch_bytes(const DecodeSize& size) const;
  static CodecCounts known_counts(int64_t num_elements);

  // piece: float32, bfloat16 or float16 (the packet is that of its values as float32). residual: float32. packet,
  // scratch: 64-byte aligned. Throws Error also for more than kMaxDeviceElements.
  kernels::TagcEncodeJob encode_job(const DeviceEncode& encode) const;
  // Packets that go to places are decoded all at once.
  kernels::TagcDecodeJob decode_job(const DeviceDecode& decode) const;

 private:
  TagcSettings settings_;
};

}  // namespace isthmus
