#include "codec/none_device.h"

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

}  // namespace

int64_t NoneDevice::encode_scratch_bytes() {
  NoneEncodeJob job = {};
  return carve_scratch(job, nullptr);
}

int64_t NoneDevice::decode_scratch_bytes(int64_t num_packets) {
  NoneDecodeJob job = {};
  job.num_packets = num_packets;
  return carve_scratch(job, nullptr);
}

NoneEncodeJob NoneDevice::encode_job(ConstBuffer piece, Buffer packet, const kernels::DeviceContext* context,
                                     Buffer scratch) const {
  const DataType wire = settings_.wire_dtype;
  ISTHMUS_CHECK(Error, piece.dtype == wire || piece.dtype == accumulate_dtype(wire), "codec none: piece of ",
                to_string(piece.dtype), " for packets of ", to_string(wire));
  NoneEncodeJob job = {};
  job.packet_bytes = settings_.packet_bytes(piece.num_elements);
  check_bytes("packet", packet, job.packet_bytes);
  check_bytes("scratch memory", scratch, carve_scratch(job, scratch.data));
  job.header = header_words(settings_.header(piece.num_elements, {}));
  job.piece = piece;
  job.wire_dtype = wire;
  job.divisor = settings_.divisor;
  job.context = context;
  job.packet = packet.as<uint8_t>();
  return job;
}

NoneDecodeJob NoneDevice::decode_job(ConstBuffer packets, int64_t num_packets, Buffer out,
                                     const kernels::DeviceContext* context, kernels::DeviceFault* fault,
                                     Buffer scratch) const {
  return plan_decode(packets, num_packets, out.num_elements, out, context, fault, scratch);
}

NoneDecodeJob NoneDevice::decode_each_job(ConstBuffer packets, int64_t num_packets, Buffer out,
                                          const kernels::DeviceContext* context, kernels::DeviceFault* fault,
                                          Buffer scratch) const {
  ISTHMUS_CHECK(Error, num_packets > 0 && out.num_elements % num_packets == 0, "codec none: ", out.num_elements,
                " elements are no equal places for ", num_packets, " packets");
  NoneDecodeJob job = plan_decode(packets, num_packets, out.num_elements / num_packets, out, context, fault, scratch);
  job.to_places = true;
  return job;
}

NoneDecodeJob NoneDevice::plan_decode(ConstBuffer packets, int64_t num_packets, int64_t num_elements, Buffer out,
                                      const kernels::DeviceContext* context, kernels::DeviceFault* fault,
                                      Buffer scratch) const {
  const DataType wire = settings_.wire_dtype;
  ISTHMUS_CHECK(Error, out.dtype == accumulate_dtype(wire), "codec none: sums of ", to_string(out.dtype),
                " for packets of ", to_string(wire));
  NoneDecodeJob job = {};
  job.packet_bytes = settings_.packet_bytes(num_elements);
  job.num_packets = num_packets;
  check_bytes("packets", packets, num_packets * job.packet_bytes);
  check_bytes("scratch memory", scratch, carve_scratch(job, scratch.data));
  job.header = header_words(settings_.header(num_elements, {}));
  job.out = out;
  job.num_elements = num_elements;
  job.wire_dtype = wire;
  job.divisor = settings_.divisor;
  job.context = context;
  job.packets = packets.as<uint8_t>();
  job.fault = fault;
  return job;
}

}  // namespace isthmus
