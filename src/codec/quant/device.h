// The host's part of codec `quant` on a device. The device's part is in kernels/quant/sequence.h.
#pragma once

#include <cstdint>

#include "codec/device_jobs.h"
#include "codec/quant/settings.h"
#include "kernels/quant/job.h"

namespace isthmus {

// A JobMaker (device_jobs.h). Packets, residuals and sums have the bits of QuantCodec's, except for which NaN a sum
// is. Pieces are float32, bfloat16 or float16, and are encoded as if widened to float32. Residuals and sums are
// float32. Packets and scratch memory begin at multiples of 64 bytes.
class QuantDevice : public DeviceJobs<QuantDevice> {
 public:
  static constexpr const char* kName = "quant";
  static constexpr Alignment kAlignment = {.packets = 64, .scratch = 64};

  // Uses the options of QuantCodec.
  explicit QuantDevice(const Options& options)
      : bits_(quant_bits(options)), keeps_residual_(quant_keeps_residual(options)) {}

  int64_t packet_bytes(int64_t num_elements) const { return quant_layout(bits_, quant_shape(num_elements)).end; }
  bool keeps_residual() const { return keeps_residual_; }

 private:
  friend class DeviceJobs<QuantDevice>;

  template <typename Job>
  Job plan(int64_t num_elements, PacketContext context) const;
  kernels::QuantEncodeJob plan_encode(int64_t num_elements, PacketContext context) const;
  kernels::QuantDecodeJob plan_decode(const DecodeSize& size, PacketContext context) const;
  void check(const DeviceEncode& encode, int64_t packet_bytes) const;
  static void check(const DeviceDecode& decode, int64_t packet_bytes);
  template <typename Job>
  static void carve(Carver& /*carver*/, Job& /*job*/) {}

  int bits_;
  bool keeps_residual_;
};

}  // namespace isthmus
