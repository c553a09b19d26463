// The host's part of codec `tagc` on a device. The device's part is in kernels/tagc/sequence.h.
#pragma once

#include <cstdint>

#include "codec/device_jobs.h"
#include "codec/tagc/settings.h"
#include "kernels/tagc/job.h"

namespace isthmus {

// num_keys: how many packets have keys; num_tables: how many are peeled at once.
kernels::SlabScratch carve_slabs(Carver& carver, const kernels::TagcShape& shape, int64_t num_keys, int64_t num_tables);

// A JobMaker (device_jobs.h). All sizes follow from the number of elements and the options. Packets, residuals and
// sums have the bits of TagcCodec's, except for which NaN a sum is. Pieces are float32, bfloat16 or float16, and are
// encoded as if widened to float32; above kMaxDeviceElements they throw Error. Residuals and sums are float32. Packets
// and scratch memory begin at multiples of 64 bytes. Packets that go to places are all decoded at once.
class TagcDevice : public DeviceJobs<TagcDevice> {
 public:
  static constexpr const char* kName = "tagc";
  static constexpr Alignment kAlignment = {.packets = 64, .scratch = 64};

  // Uses the options of TagcCodec.
  explicit TagcDevice(const Options& options, TagcLimits limits = {}) : settings_(options, limits) {}

  int64_t packet_bytes(int64_t num_elements) const { return tagc_layout(settings_.shape(num_elements)).end; }
  static bool keeps_residual() { return true; }

  // Also for the single-tier form.
  kernels::TagcEncodeJob plan_encode(int64_t num_elements, PacketContext context) const;
  static void carve(Carver& carver, kernels::TagcEncodeJob& job);

 private:
  friend class DeviceJobs<TagcDevice>;

  template <typename Job>
  Job plan(int64_t num_elements, PacketContext context) const;
  kernels::TagcDecodeJob plan_decode(const DecodeSize& size, PacketContext context) const;
  static void check(const DeviceEncode& encode, int64_t packet_bytes);
  static void check(const DeviceDecode& decode, int64_t packet_bytes);
  static void carve(Carver& carver, kernels::TagcDecodeJob& job);

  TagcSettings settings_;
};

}  // namespace isthmus
