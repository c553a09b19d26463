// Codec `none` on a device: what the host has to know and decide. The work itself is kernels/none_sequence.h.
#pragma once

#include <cstdint>

#include "codec/none.h"
#include "kernels/none_job.h"

namespace isthmus {

// As TagcDevice. Packets and sums are those of NoneCodec, bit for bit, except for which NaN a sum is. Pieces are of the
// wire type or of the type that accumulates it, sums of the latter.
class NoneDevice {
 public:
  // As NoneCodec.
  NoneDevice(DataType wire_dtype, int ranks_per_node) : settings_(wire_dtype, ranks_per_node) {}

  int64_t packet_bytes(int64_t num_elements) const { return settings_.packet_bytes(num_elements); }
  static int64_t encode_scratch_bytes();
  static int64_t decode_scratch_bytes(int64_t num_packets);

  // packet, packets, scratch: 8-byte aligned. Throws Error for a wrong type or size.
  kernels::NoneEncodeJob encode_job(ConstBuffer piece, Buffer packet, const kernels::DeviceContext* context,
                                    Buffer scratch) const;
  kernels::NoneDecodeJob decode_job(ConstBuffer packets, int64_t num_packets, Buffer out,
                                    const kernels::DeviceContext* context, kernels::DeviceFault* fault,
                                    Buffer scratch) const;
  // Puts each packet's values where they belong instead of adding them up: packet i becomes the i-th of num_packets
  // equal parts of `out`, whatever was there. As decode_job() of one packet into zeros, for each.
  kernels::NoneDecodeJob decode_each_job(ConstBuffer packets, int64_t num_packets, Buffer out,
                                         const kernels::DeviceContext* context, kernels::DeviceFault* fault,
                                         Buffer scratch) const;

 private:
  kernels::NoneDecodeJob plan_decode(ConstBuffer packets, int64_t num_packets, int64_t num_elements, Buffer out,
                                     const kernels::DeviceContext* context, kernels::DeviceFault* fault,
                                     Buffer scratch) const;

  NoneSettings settings_;
};

}  // namespace isthmus
