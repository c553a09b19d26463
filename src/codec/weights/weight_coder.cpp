#include "codec/weights/weight_coder.h"

#include <utility>

namespace isthmus {

WeightCoder::WeightCoder(DeviceLauncher& launcher, AllocateMapped allocate_mapped)
    : launcher_(launcher), allocate_mapped_(std::move(allocate_mapped)) {}

void WeightCoder::encode(const WeightEncode& encode, Stream stream) {
  launcher_.run(make_weight_encode_job(encode), stream);
}

void WeightCoder::decode(const WeightDecode& decode, Stream stream) {
  launcher_.run(make_weight_decode_job(decode), stream);
}

}  // namespace isthmus
