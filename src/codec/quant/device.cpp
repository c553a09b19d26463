#include "codec/quant/device.h"

#include "codec/packet_sizes.h"

namespace isthmus {

// Fills in what jobs of encoding and of decoding share.
template <typename Job>
Job QuantDevice::plan(int64_t num_elements, PacketContext context) const {
  Job job = {};
  job.bits = bits_;
  job.shape = quant_shape(num_elements);
  job.layout = quant_layout(bits_, job.shape);
  job.packet_bytes = job.layout.end;
  job.header = header_words(make_quant_header(bits_, num_elements, context));
  job.segment = context.segment;
  return job;
}

kernels::QuantEncodeJob QuantDevice::plan_encode(int64_t num_elements, PacketContext context) const {
  auto job = plan<kernels::QuantEncodeJob>(num_elements, context);
  job.sender = context.sender;
  return job;
}

kernels::QuantDecodeJob QuantDevice::plan_decode(const DecodeSize& size, PacketContext context) const {
  return plan<kernels::QuantDecodeJob>(size.num_elements, context);
}

void QuantDevice::check(const DeviceEncode& encode, int64_t packet_bytes) const {
  check_quant_piece(widened(encode.piece), encode.residual, keeps_residual_, encode.packet, packet_bytes);
}

void QuantDevice::check(const DeviceDecode& decode, int64_t packet_bytes) {
  check_float32_packets(kName, decode.packets, num_places(decode), widened(decode.out), packet_bytes);
}

}  // namespace isthmus
