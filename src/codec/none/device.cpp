#include "codec/none/device.h"

#include "codec/carver.h"
#include "codec/device_fault.h"
#include "isthmus/error.h"

namespace isthmus {

namespace {

using kernels::NoneDecodeJob;
using kernels::NoneEncodeJob;

// Return the bytes used.
int64_t carve_scratch(NoneEncodeJob& job, void* memory) {
  Carver carver(memory);
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(1));
  return carver.bytes();
}

int64_t carve_scratch(NoneDecodeJob& job, void* memory) {
  Carver carver(memory);
  job.state = carver.take<kernels::DecodeState>(1);
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(job.num_packets));
  return carver.bytes();
}

void check_bytes(const char* what, ConstBuffer buffer, int64_t needed) {
  ISTHMUS_CHECK(Error, buffer.bytes() >= needed && reinterpret_cast<uintptr_t>(buffer.data) % 8 == 0,
                "codec none: ", what, " of ", buffer.bytes(), " bytes where ", needed,
                " are needed, at a multiple of 8");
}

// As NoneCodec has it; the passes would also take more.
void check_packets(ConstBuffer packets, int64_t num_packets, int64_t packet_bytes) {
  ISTHMUS_CHECK(Error, packets.bytes() == num_packets * packet_bytes, "codec none: ", packets.bytes(), " bytes for ",
                num_packets, " packets of ", packet_bytes);
  check_bytes("packets", packets, num_packets * packet_bytes);
}

}  // namespace

int64_t NoneDevice::encode_scratch_bytes(int64_t /*num_elements*/) {
  NoneEncodeJob job = {};
  return carve_scratch(job, nullptr);
}

int64_t NoneDevice::decode_scratch_bytes(const DecodeSize& size) {
  NoneDecodeJob job = {};
  job.num_packets = size.num_packets;
  return carve_scratch(job, nullptr);
}

CodecCounts NoneDevice::known_counts(int64_t num_elements) {
  CodecCounts counts;
  counts.encoded_elements = counts.kept_elements = num_elements;
  return counts;
}

NoneEncodeJob NoneDevice::encode_job(const DeviceEncode& encode) const {
  const DataType wire = settings_.wire_dtype;
  const ConstBuffer piece = encode.piece;
  ISTHMUS_CHECK(Error, piece.dtype == wire || piece.dtype == accumulate_dtype(wire), "codec none: piece of ",
                to_string(piece.dtype), " for packets of ", to_string(wire));
  NoneEncodeJob job = {};
  job.packet_bytes = settings_.packet_bytes(piece.num_elements);
  check_packets(encode.packet, 1, job.packet_bytes);
  check_bytes("scratch memory", encode.scratch, carve_scratch(job, encode.scratch.data));
  job.header = header_words(settings_.header(piece.num_elements, encode.context));
  job.piece = piece;
  job.wire_dtype = wire;
  job.divisor = settings_.divisor;
  job.context = encode.context.on_device;
  job.packet = encode.packet.as<uint8_t>();
  return job;
}

NoneDecodeJob NoneDevice::decode_job(const DeviceDecode& decode) const {
  const DataType wire = settings_.wire_dtype;
  ISTHMUS_CHECK(Error, decode.out.dtype == accumulate_dtype(wire), "codec none: sums of ", to_string(decode.out.dtype),
                " for packets of ", to_string(wire));
  const DecodeSize size = size_of(decode, kName);
  NoneDecodeJob job = {};
  job.packet_bytes = settings_.packet_bytes(size.num_elements);
  job.num_packets = size.num_packets;
  job.to_places = size.to_places;
  check_packets(decode.packets, job.num_packets, job.packet_bytes);
  check_bytes("scratch memory", decode.scratch, carve_scratch(job, decode.scratch.data));
  job.header = header_words(settings_.header(size.num_elements, decode.context));
  job.senders = senders_of(decode.context);
  job.out = decode.out;
  job.num_elements = size.num_elements;
  job.wire_dtype = wire;
  job.divisor = settings_.divisor;
  job.context = decode.context.on_device;
  job.packets = decode.packets.as<uint8_t>();
  job.fault = decode.fault;
  return job;
}

}  // namespace isthmus
