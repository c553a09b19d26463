#include "codec/none/device.h"

#include "codec/packet_sizes.h"
#include "isthmus/error.h"

namespace isthmus {

CodecCounts NoneDevice::known_counts(int64_t num_elements) {
  return {.encoded_elements = num_elements, .kept_elements = num_elements};
}

// Fills in what jobs of encoding and of decoding share.
template <typename Job>
Job NoneDevice::plan(int64_t num_elements, PacketContext context) const {
  Job job = {};
  job.header = header_words(settings_.header(num_elements, context));
  job.packet_bytes = settings_.packet_bytes(num_elements);
  job.wire_dtype = settings_.wire_dtype;
  job.divisor = settings_.divisor;
  return job;
}

kernels::NoneEncodeJob NoneDevice::plan_encode(int64_t num_elements, PacketContext context) const {
  return plan<kernels::NoneEncodeJob>(num_elements, context);
}

kernels::NoneDecodeJob NoneDevice::plan_decode(const DecodeSize& size, PacketContext context) const {
  auto job = plan<kernels::NoneDecodeJob>(size.num_elements, context);
  job.num_elements = size.num_elements;
  return job;
}

void NoneDevice::check(const DeviceEncode& encode, int64_t packet_bytes) const {
  const DataType wire = settings_.wire_dtype;
  const DataType given = encode.piece.dtype;
  ISTHMUS_CHECK(Error, given == wire || given == accumulate_dtype(wire), "codec none: piece of ", to_string(given),
                " for packets of ", to_string(wire));
  check_packets(kName, encode.packet, 1, packet_bytes);
}

void NoneDevice::check(const DeviceDecode& decode, int64_t packet_bytes) const {
  const DataType wire = settings_.wire_dtype;
  const DataType out = decode.out.dtype;
  ISTHMUS_CHECK(Error, out == accumulate_dtype(wire) || (decode.shard && out == wire), "codec none: sums of ",
                to_string(out), " for packets of ", to_string(wire));
  check_packets(kName, decode.packets, num_places(decode), packet_bytes);
}

// More than kNonePacketsAtOnce packets are not summed in registers, and need memory for the sum.
void NoneDevice::carve(Carver& carver, kernels::NoneDecodeJob& job) {
  if (job.num_packets > kernels::kNonePacketsAtOnce) {
    carve_sum(carver, job);
  }
}

}  // namespace isthmus
