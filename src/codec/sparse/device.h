// Codec `sparse` on a device: what the host has to know and decide. The work itself is kernels/sparse/sequence.h.
#pragma once

#include <cstdint>

#include "codec/device_arguments.h"
#include "codec/sparse/settings.h"
#include "kernels/sparse/job.h"

namespace isthmus {

// A JobMaker (passes_codec.h). Packets, residuals and sums are those of SparseCodec, bit for bit, except for which NaN
// a sum is. Pieces are float32, bfloat16 or float16 (the packet is that of their values as float32); residuals and sums
// float32. Packets begin at multiples of 16 bytes, scratch memory at multiples of 8.
class SparseDevice {
 public:
  static constexpr const char* kName = "sparse";

  // As SparseCodec.
  explicit SparseDevice(const Options& options) : settings_(options) {}

  int64_t packet_bytes(int64_t num_elements) const;
  bool keeps_residual() const { return settings_.feedback; }
  static int64_t encode_scratch_bytes(int64_t num_elements);
  static int64_t decode_scratch_bytes(const DecodeSize& size);
  static CodecCounts known_counts(int64_t num_elements);

  kernels::SparseEncodeJob encode_job(const DeviceEncode& encode) const;
  kernels::SparseDecodeJob decode_job(const DeviceDecode& decode) const;

 private:
  SparseSettings settings_;
};

}  // namespace isthmus
