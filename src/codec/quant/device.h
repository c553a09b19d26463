// Codec `quant` on a device: what the host has to know and decide. The work itself is kernels/quant/sequence.h.
#pragma once

#include <cstdint>

#include "codec/device_arguments.h"
#include "codec/quant/settings.h"
#include "kernels/quant/job.h"

namespace isthmus {

// A JobMaker (passes_codec.h). Packets, residuals and sums are those of QuantCodec, bit for bit, except for which NaN a
// sum is.
class QuantDevice {
 public:
  static constexpr const char* kName = "quant";

  // As QuantCodec.
  explicit QuantDevice(const Options& options)
      : settings_(quant_settings(options)), keeps_residual_(quant_keeps_residual(options)) {}

  int64_t packet_bytes(int64_t num_elements) const;
  bool keeps_residual() const { return keeps_residual_; }
  static int64_t encode_scratch_bytes(int64_t num_elements);
  static int64_t decode_scratch_bytes(const DecodeSize& size);
  static CodecCounts known_counts(int64_t num_elements);

  // piece: float32, bfloat16 or float16 (the packet is that of its values as float32). residual: float32. packet,
  // scratch: 64-byte aligned.
  kernels::QuantEncodeJob encode_job(const DeviceEncode& encode) const;
  kernels::QuantDecodeJob decode_job(const DeviceDecode& decode) const;

 private:
  kernels::QuantSettings settings_;
  bool keeps_residual_;
};

}  // namespace isthmus
