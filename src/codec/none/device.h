// Codec `none` on a device: what the host has to know and decide. The work itself is kernels/none/sequence.h.
#pragma once

#include <cstdint>

#include "codec/device_arguments.h"
#include "codec/none/host.h"
#include "kernels/none/job.h"

namespace isthmus {

// A JobMaker (passes_codec.h). Packets and sums are those of NoneCodec, bit for bit, except for which NaN a sum is.
// Pieces are of the wire type or of the type that accumulates it, sums of the latter. Packets and scratch memory begin
// at multiples of 8 bytes.
class NoneDevice {
 public:
  static constexpr const char* kName = "none";

  // As NoneCodec.
  NoneDevice(DataType wire_dtype, int ranks_per_node) : settings_(wire_dtype, ranks_per_node) {}

  int64_t packet_bytes(int64_t num_elements) const { return settings_.packet_bytes(num_elements); }
  static bool keeps_residual() { return false; }
  static int64_t encode_scratch_bytes(int64_t num_elements);
  static int64_t decode_scratch_bytes(const DecodeSize& size);
  static CodecCounts known_counts(int64_t num_elements);

  kernels::NoneEncodeJob encode_job(const DeviceEncode& encode) const;
  kernels::NoneDecodeJob decode_job(const DeviceDecode& decode) const;

 private:
  NoneSettings settings_;
};

}  // namespace isthmus
