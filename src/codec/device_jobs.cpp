#include "codec/device_jobs.h"

#include "isthmus/error.h"

namespace isthmus {

void check_device_memory(const char* codec, const char* what, ConstBuffer buffer, int64_t needed, uintptr_t alignment) {
  ISTHMUS_CHECK(Error, buffer.bytes() >= needed && reinterpret_cast<uintptr_t>(buffer.data) % alignment == 0, "codec ",
                codec, ": ", what, " of ", buffer.bytes(), " bytes where ", needed, " are needed, at a multiple of ",
                alignment);
}

ConstBuffer widened(ConstBuffer piece) {
  const bool is_16_bit = piece.dtype == DataType::kBFloat16 || piece.dtype == DataType::kFloat16;
  return {piece.data, piece.num_elements, is_16_bit ? DataType::kFloat32 : piece.dtype};
}

void add_arguments(kernels::EncodeJobBase& job, const DeviceEncode& encode) {
  job.context = encode.context.on_device;
  job.piece = encode.piece;
  job.packet = encode.packet.as<uint8_t>();
  job.counts = encode.counts;
  job.counted = encode.context.counted;
  job.guard = encode.context.guard;
  job.num_pieces = encode.num_pieces;
  job.left_out = encode.left_out;
  job.steps = encode.steps;
}

void add_arguments(kernels::DecodeJobBase& job, const DeviceDecode& decode) {
  job.senders = senders_of(decode.context);
  job.context = decode.context.on_device;
  job.packets = decode.packets.as<uint8_t>();
  job.out = decode.out;
  job.fault = decode.fault;
  job.counted = decode.context.counted;
  if (decode.shard) {
    job.own = decode.shard->own;
    job.scale = decode.shard->scale;
  } else {
    job.own = decode.to_places ? ConstBuffer{} : ConstBuffer(decode.out);
    job.scale = 1;
  }
  if (job.sum.data == nullptr) {
    job.sum = decode.out;
  }
}

void carve_shared(Carver& carver, kernels::EncodeJobBase& job) {
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(1));
  job.arrived = carver.take<uint32_t>(1);
  job.sealed = carver.take<uint32_t>(1);
}

void carve_shared(Carver& carver, kernels::DecodeJobBase& job) {
  job.state = carver.take<kernels::DecodeState>(1);
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(job.num_places()));
}

void carve_sum(Carver& carver, kernels::DecodeJobBase& job) {
  if (job.sum.num_elements > 0) {
    carver.align();
    job.sum.data = carver.take<float>(job.sum.num_elements);
  }
}

}  // namespace isthmus
