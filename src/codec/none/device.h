// The host's part of codec `none` on a device. The device's part is in kernels/none/sequence.h.
#pragma once

#include <cstdint>

#include "codec/device_jobs.h"
#include "codec/none/host.h"
#include "kernels/none/job.h"

namespace isthmus {

// A JobMaker (device_jobs.h). Packets and sums have the bits of NoneCodec's, except for which NaN a sum is. Pieces
// have the wire type or the type that accumulates it, which sums always have. Packets and scratch memory begin at
// multiples of 8 bytes.
class NoneDevice : public DeviceJobs<NoneDevice> {
 public:
  static constexpr const char* kName = "none";
  static constexpr Alignment kAlignment = {.packets = 8, .scratch = 8};
  static constexpr bool kReadsContext = false;

  // The arguments are those of NoneCodec.
  NoneDevice(DataType wire_dtype, int ranks_per_node) : settings_(wire_dtype, ranks_per_node) {}

  int64_t packet_bytes(int64_t num_elements) const { return settings_.packet_bytes(num_elements); }
  static bool keeps_residual() { return false; }
  static CodecCounts known_counts(int64_t num_elements);

 private:
  friend class DeviceJobs<NoneDevice>;

  template <typename Job>
  Job plan(int64_t num_elements, PacketContext context) const;
  kernels::NoneEncodeJob plan_encode(int64_t num_elements, PacketContext context) const;
  kernels::NoneDecodeJob plan_decode(const DecodeSize& size, PacketContext context) const;
  void check(const DeviceEncode& encode, int64_t packet_bytes) const;
  void check(const DeviceDecode& decode, int64_t packet_bytes) const;
  static void carve(Carver& /*carver*/, kernels::NoneEncodeJob& /*job*/) {}
  static void carve(Carver& carver, kernels::NoneDecodeJob& job);

  NoneSettings settings_;
};

}  // namespace isthmus
