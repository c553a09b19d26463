#include "codec/quant/device.h"

#include "codec/carver.h"
#include "codec/device_fault.h"
#include "isthmus/error.h"

namespace isthmus {

namespace {

using kernels::QuantDecodeJob;
using kernels::QuantEncodeJob;

// Return the bytes used.
int64_t carve_scratch(QuantEncodeJob& job, void* memory) {
  Carver carver(memory);
  job.arrived = carver.take<uint32_t>(1);
  carver.align();
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(1));
  return carver.bytes();
}

int64_t carve_scratch(QuantDecodeJob& job, void* memory) {
  Carver carver(memory);
  job.state = carver.take<kernels::DecodeState>(1);
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(job.num_packets));
  return carver.bytes();
}

void check_bytes(const char* what, ConstBuffer buffer, int64_t needed) {
  ISTHMUS_CHECK(Error, buffer.bytes() >= needed && reinterpret_cast<uintptr_t>(buffer.data) % 64 == 0,
                "codec quant: ", what, " of ", buffer.bytes(), " bytes where ", needed,
                " are needed, at a multiple of 64");
}

// What both kinds of jobs say of a packet.
template <typename Job>
Job plan(const kernels::QuantSettings& settings, int64_t num_elements, PacketContext context) {
  Job job = {};
  job.settings = settings;
  job.shape = quant_shape(settings, num_elements);
  job.layout = quant_layout(settings, job.shape);
  job.header = header_words(make_quant_header(settings, num_elements, context));
  job.segment = context.segment;
  job.context = context.on_device;
  return job;
}

}  // namespace

int64_t QuantDevice::packet_bytes(int64_t num_elements) const {
  return quant_layout(settings_, quant_shape(settings_, num_elements)).end;
}

int64_t QuantDevice::encode_scratch_bytes(int64_t /*num_elements*/) {
  QuantEncodeJob job = {};
  return carve_scratch(job, nullptr);
}

int64_t QuantDevice::decode_scratch_bytes(const DecodeSize& size) {
  QuantDecodeJob job = {};
  job.num_packets = size.num_packets;
  return carve_scratch(job, nullptr);
}

CodecCounts QuantDevice::known_counts(int64_t num_elements) {
  CodecCounts counts;
  counts.encoded_elements = num_elements;
  return counts;
}

QuantEncodeJob QuantDevice::encode_job(const DeviceEncode& encode) const {
  const ConstBuffer piece = encode.piece;
  const bool is_16_bit = piece.dtype == DataType::kBFloat16 || piece.dtype == DataType::kFloat16;
  const ConstBuffer widened = {piece.data, piece.num_elements, is_16_bit ? DataType::kFloat32 : piece.dtype};
  auto job = plan<QuantEncodeJob>(settings_, piece.num_elements, encode.context);
  check_quant_piece(widened, encode.residual, keeps_residual_, encode.packet, job.layout.end);
  check_bytes("packet", encode.packet, job.layout.end);
  check_bytes("scratch memory", encode.scratch, carve_scratch(job, encode.scratch.data));
  job.piece = piece;
  job.residual = keeps_residual_ ? encode.residual.as<float>() : nullptr;
  job.packet = encode.packet.as<uint8_t>();
  job.counts = encode.counts;
  job.sender = encode.context.sender;
  return job;
}

QuantDecodeJob QuantDevice::decode_job(const DeviceDecode& decode) const {
  const DecodeSize size = size_of(decode, kName);
  auto job = plan<QuantDecodeJob>(settings_, size.num_elements, decode.context);
  job.senders = senders_of(decode.context);
  job.num_packets = size.num_packets;
  job.to_places = size.to_places;
  check_quant_packets(decode.packets, job.num_packets, decode.out, job.layout.end);
  check_bytes("packets", decode.packets, job.num_packets * job.layout.end);
  check_bytes("scratch memory", decode.scratch, carve_scratch(job, decode.scratch.data));
  job.packets = decode.packets.as<uint8_t>();
  job.out = decode.out.as<float>();
  job.fault = decode.fault;
  return job;
}

}  // namespace isthmus
