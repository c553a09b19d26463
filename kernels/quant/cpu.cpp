// The CPU executor of codec `quant`: loops over blocks around the block algorithm. Compiled once for each instruction
// set.
#include "kernels/block/lanes16.h"
#include "kernels/quant/block.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr VectorLanes kVectorLanes16{};

// Calls visit(block, number of groups in it) for each block that `num_groups` groups fill, from 0 on.
template <typename Visit>
void for_each_block(int64_t num_groups, Visit visit) {
  for (int64_t block = 0; num_groups > 0; ++block, num_groups -= kQuantGroups) {
    visit(block, static_cast<int>(num_groups < kQuantGroups ? num_groups : kQuantGroups));
  }
}

template <bool kFeedback>
int64_t encode_blocks(int bits, uint64_t seed, int64_t first_block, int64_t num_groups, const float* piece,
                      float* residual, uint16_t* scales, uint32_t* words, uint32_t& level) {
  const Quantizer quantizer(bits);
  int64_t non_finite_groups = 0;
  for_each_block(num_groups, [&](int64_t block, int groups) {
    const int64_t first = block * kQuantBlockElements;
    const QuantRows<float, kFeedback, VectorLanes> rows = {
        &kVectorLanes16, piece + first, kFeedback ? residual + first : nullptr, groups * kQuantGroupRows};
    QuantWords<VectorLanes, uint32_t> block_words = {kVectorLanes16, words + block * kQuantLanes * bits};
    non_finite_groups += encode_block(kVectorLanes16, quantizer, seed, first_block + block, groups, rows,
                                      scales + block * kQuantGroups, block_words, level);
  });
  return non_finite_groups;
}

inline int64_t encode(int bits, uint64_t seed, int64_t first_block, int64_t num_groups, const float* piece,
                      float* residual, uint16_t* scales, uint32_t* words, uint32_t& level) {
  const auto encode_them = residual == nullptr ? encode_blocks<false> : encode_blocks<true>;
  return encode_them(bits, seed, first_block, num_groups, piece, residual, scales, words, level);
}

// kAdds: to what stands in `out`; else to zero.
template <bool kAdds>
void decode_blocks(int bits, uint64_t seed, int64_t first_block, int64_t num_groups, const uint16_t* scales,
                   const uint32_t* words, float* out) {
  const Quantizer quantizer(bits);
  for_each_block(num_groups, [&](int64_t block, int groups) {
    float* first = out + block * kQuantBlockElements;
    QuantWords<VectorLanes, const uint32_t> block_words = {kVectorLanes16, words + block * kQuantLanes * bits};
    decode_block(kVectorLanes16, quantizer, seed, first_block + block, groups, scales + block * kQuantGroups,
                 block_words, [=](int row, VectorFloat value, bool present) {
                   float* place = first + int64_t{row} * kQuantLanes;
                   prefetch(place);
                   const VectorFloat before = kAdds ? VectorLanes::load(place, present) : VectorFloat{};
                   VectorLanes::store(before + value, place, present);
                 });
  });
}

constexpr QuantKernels kKernels = {.encode = encode, .decode = decode_blocks<false>, .decode_add = decode_blocks<true>};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE

namespace isthmus::kernels {

const QuantKernels& quant_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kKernels;
}

}  // namespace isthmus::kernels
