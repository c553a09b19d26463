#include "codec/sparse/device.h"

#include "codec/device_fault.h"

namespace isthmus {

int64_t SparseDevice::packet_bytes(int64_t num_elements) const {
  return sparse_layout(settings_.shape(num_elements)).end;
}

// The fields that jobs of encoding and of decoding share.
template <typename Job>
Job SparseDevice::plan(int64_t num_elements, PacketContext context) const {
  Job job = {};
  job.shape = settings_.shape(num_elements);
  job.layout = sparse_layout(job.shape);
  job.packet_bytes = job.layout.end;
  job.header = header_words(make_sparse_header(job.shape, context));
  return job;
}

kernels::SparseEncodeJob SparseDevice::plan_encode(int64_t num_elements, PacketContext context) const {
  return plan<kernels::SparseEncodeJob>(num_elements, context);
}

kernels::SparseDecodeJob SparseDevice::plan_decode(const DecodeSize& size, PacketContext context) const {
  return plan<kernels::SparseDecodeJob>(size.num_elements, context);
}

void SparseDevice::check(const DeviceEncode& encode, int64_t packet_bytes) const {
  check_sparse_piece(widened(encode.piece), encode.residual, encode.packet, packet_bytes, settings_.feedback);
}

void SparseDevice::check(const DeviceDecode& decode, int64_t packet_bytes) {
  check_sparse_packets(decode.packets, num_places(decode), widened(decode.out), packet_bytes);
}

}  // namespace isthmus
