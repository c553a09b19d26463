// Codec `tagc` on a device: what the host has to know and decide. The work itself is kernels/tagc_sequence.h.
#pragma once

#include <cstdint>

#include "codec/tagc_plan.h"
#include "isthmus/codec.h"
#include "kernels/tagc_job.h"

namespace isthmus {

// Prepares jobs; touches no device and allocates nothing. Buffers and pointers are the device's and must stay until the
// job has run. All sizes follow from the number of elements and the options. Packets, residuals and sums are those of
// TagcCodec, bit for bit, except for which NaN a sum is.
class TagcDevice {
 public:
  // As TagcCodec.
  explicit TagcDevice(const Options& options) : settings_(options) {}

  int64_t packet_bytes(int64_t num_elements) const;
  int64_t encode_scratch_bytes(int64_t num_elements) const;
  int64_t decode_scratch_bytes(int64_t num_elements, int64_t num_packets) const;
  int64_t decode_each_scratch_bytes(int64_t num_elements, int64_t num_packets) const;  // num_elements: of a packet

  // piece: float32, bfloat16 or float16 (the packet is that of its values as float32). residual: float32. packet,
  // scratch: 64-byte aligned, contents do not matter. Throws Error for a wrong type or size, or for more than
  // kMaxDeviceElements.
  kernels::TagcEncodeJob encode_job(ConstBuffer piece, Buffer residual, Buffer packet,
                                    const kernels::DeviceContext* context, kernels::DeviceCounts* counts,
                                    Buffer scratch) const;
  kernels::TagcDecodeJob decode_job(ConstBuffer packets, int64_t num_packets, Buffer out,
                                    const kernels::DeviceContext* context, kernels::DeviceFault* fault,
                                    Buffer scratch) const;
  // Puts each packet's values where they belong instead of adding them up: packet i becomes the i-th of num_packets
  // equal parts of `out`, whatever was there, and all of them are decoded at once. As decode_job() of one packet into
  // zeros, for each. Needs decode_each_scratch_bytes().
  kernels::TagcDecodeJob decode_each_job(ConstBuffer packets, int64_t num_packets, Buffer out,
                                         const kernels::DeviceContext* context, kernels::DeviceFault* fault,
                                         Buffer scratch) const;

 private:
  TagcSettings settings_;
};

}  // namespace isthmus
