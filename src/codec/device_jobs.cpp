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

void carve_shared(Carver& carver, kernels::EncodeJobBase& job) {
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(1));
  job.arrived = carver.take<uint32_t>(1);
  job.sealed = carver.take<uint32_t>(1);
}

void carve_shared(Carver& carver, kernels::DecodeJobBase& job) {
  job.state = carver.take<kernels::DecodeState>(1);
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(job.num_places()));
}

}  // namespace isthmus
