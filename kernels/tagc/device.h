// The host's part of codec `tagc` on a device. The device's part is in kernels/tagc/run_passes.h.
#pragma once

#include <cstdint>

#include "codec/passes_codec.h"
#include "kernels/tagc/job.h"
#include "kernels/tagc/settings.h"

namespace isthmus {

// num_keys: how many packets have keys; num_tables: how many are peeled at once.
kernels::SlabScratch carve_slabs(Carver& carver, const kernels::TagcShape& shape, int64_t num_keys, int64_t num_tables);

// A maker (passes_codec.h). All sizes follow from the number of elements and the options. Packets, residuals and
// sums have the bits of TagcCodec's, except for which NaN a sum is. Pieces are float32, bfloat16 or float16, and are
// encoded as if widened to float32; above kMaxDeviceElements they throw Error. Residuals and sums are float32. Packets
// that go to places are all decoded at once.
class TagcMaker {
 public:
  static constexpr const char* kName = "tagc";
  static constexpr int64_t kAlignment = 64;
  static constexpr bool kIsExact = false;

  // Uses the options of TagcCodec.
  explicit TagcMaker(const Options& options, TagcLimits limits = {}) : settings_(options, limits) {}

  int64_t packet_bytes(int64_t num_elements) const { return tagc_layout(settings_.shape(num_elements)).end; }
  static bool keeps_residual() { return true; }

  kernels::TagcEncodeJob plan_encode(int64_t num_elements, PacketContext context) const;
  kernels::TagcDecodeJob plan_decode(int64_t num_elements, PacketContext context) const;
  void check_piece(ConstBuffer piece, ConstBuffer residual, ConstBuffer packet) const {
    check_float32_piece(kName, widened(piece), residual, true, packet, packet_bytes(piece.num_elements));
  }
  static void check_sum(ConstBuffer out, bool /*is_shard*/) { check_float32_sum(kName, widened(out)); }
  static void carve(Carver& carver, kernels::TagcEncodeJob& job);
  static void carve(Carver& carver, kernels::TagcDecodeJob& job);

 private:
  template <typename Job>
  Job plan(int64_t num_elements, PacketContext context) const;

  TagcSettings settings_;
};

}  // namespace isthmus
