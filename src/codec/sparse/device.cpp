#include "codec/sparse/device.h"

#include "codec/carver.h"
#include "codec/device_fault.h"
#include "isthmus/error.h"

namespace isthmus {

namespace {

using kernels::SparseDecodeJob;
using kernels::SparseEncodeJob;

// Return the bytes used.
int64_t carve_scratch(SparseEncodeJob& job, void* memory) {
  Carver carver(memory);
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(1));
  job.arrived = carver.take<uint32_t>(1);
  return carver.bytes();
}

int64_t carve_scratch(SparseDecodeJob& job, void* memory) {
  Carver carver(memory);
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(job.num_packets));
  job.state = carver.take<kernels::DecodeState>(1);
  return carver.bytes();
}

void check_memory(const char* what, ConstBuffer buffer, int64_t needed_bytes, uintptr_t alignment) {
  ISTHMUS_CHECK(Error, buffer.bytes() >= needed_bytes && reinterpret_cast<uintptr_t>(buffer.data) % alignment == 0,
                "codec sparse: ", what, " of ", buffer.bytes(), " bytes where ", needed_bytes,
                " are needed, at a multiple of ", alignment);
}

}  // namespace

int64_t SparseDevice::packet_bytes(int64_t num_elements) const {
  return sparse_layout(settings_.shape(num_elements)).end;
}

int64_t SparseDevice::encode_scratch_bytes(int64_t /*num_elements*/) {
  SparseEncodeJob job = {};
  return carve_scratch(job, nullptr);
}

int64_t SparseDevice::decode_scratch_bytes(const DecodeSize& size) {
  SparseDecodeJob job = {};
  job.num_packets = size.num_packets;
  return carve_scratch(job, nullptr);
}

CodecCounts SparseDevice::known_counts(int64_t num_elements) {
  CodecCounts counts;
  counts.encoded_elements = num_elements;
  return counts;
}

SparseEncodeJob SparseDevice::encode_job(const DeviceEncode& encode) const {
  const ConstBuffer piece = encode.piece;
  SparseEncodeJob job = {};
  job.shape = settings_.shape(piece.num_elements);
  job.layout = sparse_layout(job.shape);
  const bool is_16_bit = piece.dtype == DataType::kBFloat16 || piece.dtype == DataType::kFloat16;
  const ConstBuffer widened = {piece.data, piece.num_elements, is_16_bit ? DataType::kFloat32 : piece.dtype};
  check_sparse_piece(widened, encode.residual, encode.packet, job.layout.end, settings_.feedback);
  check_memory("packet", encode.packet, job.layout.end, 16);
  check_memory("scratch memory", encode.scratch, carve_scratch(job, encode.scratch.data), 8);
  job.header = header_words(make_sparse_header(job.shape, encode.context));
  job.context = encode.context.on_device;
  job.piece = piece;
  job.residual = settings_.feedback ? encode.residual.as<float>() : nullptr;
  job.packet = encode.packet.as<uint8_t>();
  job.counts = encode.counts;
  return job;
}

SparseDecodeJob SparseDevice::decode_job(const DeviceDecode& decode) const {
  const DecodeSize size = size_of(decode, kName);
  SparseDecodeJob job = {};
  job.shape = settings_.shape(size.num_elements);
  job.layout = sparse_layout(job.shape);
  job.num_packets = size.num_packets;
  job.to_places = size.to_places;
  check_sparse_packets(decode.packets, job.num_packets, decode.out, job.layout.end);
  check_memory("packets", decode.packets, job.num_packets * job.layout.end, 16);
  check_memory("scratch memory", decode.scratch, carve_scratch(job, decode.scratch.data), 8);
  job.header = header_words(make_sparse_header(job.shape, decode.context));
  job.senders = senders_of(decode.context);
  job.context = decode.context.on_device;
  job.packets = decode.packets.as<uint8_t>();
  job.out = decode.out.as<float>();
  job.fault = decode.fault;
  return job;
}

}  // namespace isthmus
