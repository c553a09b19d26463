// Codec `sparse` on a device: the host's part. kernels/sparse/sequence.h has the device's.
#pragma once

#include <cstdint>

#include "codec/device_jobs.h"
#include "codec/sparse/settings.h"
#include "kernels/sparse/job.h"

namespace isthmus {

// A JobMaker (passes_codec.h). Packets, residuals and sums are those of SparseCodec, bit for bit, except for which NaN
// a sum is. Pieces are float32, bfloat16 or float16 (the packet is that of their values as float32); residuals and sums
// float32. Packets begin at multiples of 16 bytes, scratch memory at multiples of 8.
class SparseDevice : public DeviceJobs<SparseDevice> {
 public:
  static constexpr const char* kName = "sparse";
  static constexpr Alignment kAlignment = {.packets = 16, .scratch = 8};

  // As SparseCodec.
  explicit SparseDevice(const Options& options) : settings_(options) {}

  int64_t packet_bytes(int64_t num_elements) const;
  bool keeps_residual() const { return settings_.feedback; }

 private:
  friend class DeviceJobs<SparseDevice>;

  template <typename Job>
  Job plan(int64_t num_elements, PacketContext context) const;
  kernels::SparseEncodeJob plan_encode(int64_t num_elements, PacketContext context) const;
  kernels::SparseDecodeJob plan_decode(const DecodeSize& size, PacketContext context) const;
  void check(const DeviceEncode& encode, int64_t packet_bytes) const;
  static void check(const DeviceDecode& decode, int64_t packet_bytes);
  template <typename Job>
  static void carve(Carver& /*carver*/, Job& /*job*/) {}

  SparseSettings settings_;
};

}  // namespace isthmus
