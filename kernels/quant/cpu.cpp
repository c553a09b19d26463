// The CPU executor of codec `quant`: loops over blocks around the block algorithm. Compiled once for each instruction
// set.
#include "kernels/block/lanes16.h"
#include "kernels/quant/block.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr VectorLanes kVectorLanes16{};

// Prefetches memory that is needed soon: the hardware alone does not fetch far enough ahead.
[[gnu::always_inline]] inline void prefetch(const float* row) {
  constexpr uintptr_t kAheadBytes = 1024;
  const uintptr_t address = reinterpret_cast<uintptr_t>(row) + kAheadBytes;  // may be no valid address: it is not read
  __builtin_prefetch(reinterpret_cast<const void*>(address));                // NOLINT(performance-no-int-to-ptr)
}

// The rows of a block without error feedback.
struct PieceRows {
  static constexpr bool kWanted = false;  // what the receiver decodes

  const float* piece;
  float* residual;
  int64_t num_rows;

  VectorFloat operator()(int row) const {
    return VectorLanes::load(piece + int64_t{row} * kQuantLanes, row < num_rows);
  }
  void operator()(int, VectorFloat, bool) const {}
};

// With error feedback: encodes piece + residual, and keeps what the receiver lacks as the residual.
struct SumRows {
  static constexpr bool kWanted = true;

  const float* piece;
  float* residual;
  int64_t num_rows;

  VectorFloat operator()(int row) const {
    const bool present = row < num_rows;
    prefetch(piece + int64_t{row} * kQuantLanes);
    prefetch(residual + int64_t{row} * kQuantLanes);
    return VectorLanes::load(piece + int64_t{row} * kQuantLanes, present) +
           VectorLanes::load(residual + int64_t{row} * kQuantLanes, present);
  }
  void operator()(int row, VectorFloat decoded, bool keep) const {
    if (keep) {
      constexpr float kLargest = 0x1.fffffep127F;
      VectorLanes::store(VectorLanes::limited((*this)(row)-decoded, -kLargest, kLargest),
                         residual + int64_t{row} * kQuantLanes, true);
    }
  }
};

// Calls visit(block, number of groups in it) for each block that `num_groups` groups fill, from 0 on.
template <typename Visit>
void for_each_block(int64_t num_groups, Visit visit) {
  for (int64_t block = 0; num_groups > 0; ++block, num_groups -= kQuantGroups) {
    visit(block, static_cast<int>(num_groups < kQuantGroups ? num_groups : kQuantGroups));
  }
}

template <typename Rows>
int64_t encode_blocks(int bits, uint64_t seed, int64_t first_block, int64_t num_groups, const float* piece,
                      float* residual, uint16_t* scales, uint32_t* words, uint32_t& level) {
  const Quantizer quantizer(bits);
  int64_t non_finite_groups = 0;
  for_each_block(num_groups, [&](int64_t block, int groups) {
    const int64_t first = block * kQuantBlockElements;
    const Rows rows = {piece + first, residual == nullptr ? nullptr : residual + first, groups * kQuantGroupRows};
    QuantWords<VectorLanes, uint32_t> block_words = {kVectorLanes16, words + block * kQuantLanes * bits};
    non_finite_groups += encode_block(kVectorLanes16, quantizer, seed, first_block + block, groups, rows, rows,
                                      scales + block * kQuantGroups, block_words, level);
  });
  return non_finite_groups;
}

inline int64_t encode(int bits, uint64_t seed, int64_t first_block, int64_t num_groups, const float* piece,
                      float* residual, uint16_t* scales, uint32_t* words, uint32_t& level) {
  const auto encode_them = residual == nullptr ? encode_blocks<PieceRows> : encode_blocks<SumRows>;
  return encode_them(bits, seed, first_block, num_groups, piece, residual, scales, words, level);
}

inline void decode_add(int bits, uint64_t seed, int64_t first_block, int64_t num_groups, const uint16_t* scales,
                       const uint32_t* words, float* out) {
  const Quantizer quantizer(bits);
  for_each_block(num_groups, [&](int64_t block, int groups) {
    float* first = out + block * kQuantBlockElements;
    QuantWords<VectorLanes, const uint32_t> block_words = {kVectorLanes16, words + block * kQuantLanes * bits};
    decode_block(kVectorLanes16, quantizer, seed, first_block + block, groups, scales + block * kQuantGroups,
                 block_words, [=](int row, VectorFloat value, bool present) {
                   float* place = first + int64_t{row} * kQuantLanes;
                   prefetch(place);
                   VectorLanes::store(VectorLanes::load(place, present) + value, place, present);
                 });
  });
}

constexpr QuantKernels kKernels = {.encode = encode, .decode_add = decode_add};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE

namespace isthmus::kernels {

const QuantKernels& quant_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kKernels;
}

}  // namespace isthmus::kernels
