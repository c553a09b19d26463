// The CPU executor of weight differences: loops over groups around the block algorithm and the coder. Compiled once for
// each instruction set.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "kernels/weights/block.h"
#include "kernels/weights/coder.h"
#include "kernels/weights/layout.h"
#include "kernels/weights/moves.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Sums over neighbours: the lanes' sums stand side by side, which vectorises.
template <typename Format>
WeightMoves moves_of(const typename Format::Bits* old_bits, const typename Format::Bits* new_bits, int64_t count,
                     float most) {
  std::array<float, kWeightLanes> sums{};
  std::array<float, kWeightLanes> largest{};
  const auto add = [&](int64_t i, int64_t lane) {
    const float counted = counted_move<Format>(old_bits[i], new_bits[i], most);
    sums[lane] += counted;
    largest[lane] = largest[lane] > counted ? largest[lane] : counted;
  };
  int64_t i = 0;
  for (; i + kWeightLanes <= count; i += kWeightLanes) {
    for (int64_t lane = 0; lane < kWeightLanes; ++lane) {
      add(i + lane, lane);
    }
  }
  for (; i < count; ++i) {
    add(i, 0);
  }
  WeightMoves moves;
  for (int64_t lane = 0; lane < kWeightLanes; ++lane) {
    moves.add(WeightMoves{sums[lane], largest[lane]});
  }
  return moves;
}

// The last elements of a block, too few for a step.
template <typename Bits>
struct PaddedStep {
  std::array<Bits, kWeightLanes> bits{};  // missing elements do not move

  PaddedStep(const Bits* present, int64_t count) { std::copy_n(present, count, bits.begin()); }
};

template <typename Format>
int64_t encode_weight_block(const void* old_weights, const void* new_weights, int64_t count, void* out,
                            WeightScratch& scratch) {
  using Bits = typename Format::Bits;
  const auto* old_bits = static_cast<const Bits*>(old_weights);
  const auto* new_bits = static_cast<const Bits*>(new_weights);
  const int64_t raw_bytes = count * static_cast<int64_t>(sizeof(Bits));
  if (std::memcmp(old_bits, new_bits, raw_bytes) == 0) {
    return 0;
  }
  WeightBlockHeader header;
  header.moved.fill(0);
  uint16_t* const words_end = scratch.words.data() + scratch.words.size();
  WeightWriter writer{words_end, scratch.escapes.data()};
  WeightCoder<Format> coder;
  const int64_t num_groups = (count + kWeightGroupElements - 1) / kWeightGroupElements;
  for (int64_t index = num_groups - 1; index >= 0; --index) {
    const int64_t begin = index * kWeightGroupElements;
    const int64_t end = std::min(begin + kWeightGroupElements, count);
    MoveEstimate estimate(end - begin);
    while (!estimate.is_done()) {
      estimate.take(moves_of<Format>(old_bits + begin, new_bits + begin, end - begin, estimate.most()));
    }
    header.moved[index] = estimate.log2_of_mean();
    const int32_t scale = weight_scale<Format>(header.moved[index]);
    int64_t first = end - end % kWeightLanes;
    if (first < end) {
      const PaddedStep<Bits> old_step(old_bits + first, end - first);
      const PaddedStep<Bits> new_step(new_bits + first, end - first);
      coder.encode(old_step.bits.data(), new_step.bits.data(), scale, first, writer);
    }
    for (first -= kWeightLanes; first >= begin; first -= kWeightLanes) {
      coder.encode(old_bits + first, new_bits + first, scale, first, writer);
    }
  }
  coder.end(header.states, writer);
  const int64_t num_escapes = writer.escapes - scratch.escapes.data();
  const int64_t words_bytes = (words_end - writer.words) * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t escape_bytes = num_escapes * static_cast<int64_t>(sizeof(uint16_t) + sizeof(Bits));
  const int64_t bytes = static_cast<int64_t>(sizeof(header)) + words_bytes + escape_bytes;
  auto* const target = static_cast<std::byte*>(out);
  if (bytes >= raw_bytes) {
    std::memcpy(target, new_bits, raw_bytes);
    return raw_bytes;
  }
  header.num_escapes = static_cast<uint16_t>(num_escapes);
  std::memcpy(target, &header, sizeof(header));
  std::byte* place = target + sizeof(header);
  std::memcpy(place, writer.words, words_bytes);
  place += words_bytes;
  for (int64_t i = num_escapes - 1; i >= 0; --i, place += sizeof(uint16_t)) {
    std::memcpy(place, &scratch.escapes[i], sizeof(uint16_t));
  }
  for (int64_t i = num_escapes - 1; i >= 0; --i, place += sizeof(Bits)) {
    std::memcpy(place, &new_bits[scratch.escapes[i]], sizeof(Bits));
  }
  return bytes;
}

template <typename Format>
bool decode_weight_block(const void* block, int64_t bytes, void* weights, int64_t count) {
  using Bits = typename Format::Bits;
  auto* const bits = static_cast<Bits*>(weights);
  const auto* const source = static_cast<const std::byte*>(block);
  const int64_t raw_bytes = count * static_cast<int64_t>(sizeof(Bits));
  if (bytes == 0) {
    return true;
  }
  if (bytes == raw_bytes) {
    std::memcpy(bits, source, raw_bytes);
    return true;
  }
  WeightBlockHeader header;
  if (bytes < static_cast<int64_t>(sizeof(header)) || bytes > raw_bytes) {
    return false;
  }
  std::memcpy(&header, source, sizeof(header));
  const int64_t escape_bytes = header.num_escapes * static_cast<int64_t>(sizeof(uint16_t) + sizeof(Bits));
  const int64_t words_bytes = bytes - static_cast<int64_t>(sizeof(header)) - escape_bytes;
  if (words_bytes < 0 || words_bytes % sizeof(uint16_t) != 0) {
    return false;
  }
  const auto* words = reinterpret_cast<const uint16_t*>(source + sizeof(header));  // blocks begin at even addresses
  const uint16_t* const end = words + words_bytes / static_cast<int64_t>(sizeof(uint16_t));
  WeightCoder<Format> coder;
  coder.begin(header.states, words);
  for (int64_t begin = 0; begin < count; begin += kWeightGroupElements) {
    const int64_t group_end = std::min(begin + kWeightGroupElements, count);
    const int32_t scale = weight_scale<Format>(header.moved[begin / kWeightGroupElements]);
    int64_t first = begin;
    for (; first + kWeightLanes <= group_end && words <= end; first += kWeightLanes) {
      coder.decode(bits + first, scale, words);
    }
    if (words > end) {
      return false;
    }
    if (first < group_end) {
      PaddedStep<Bits> step(bits + first, group_end - first);
      coder.decode(step.bits.data(), scale, words);
      std::copy_n(step.bits.begin(), group_end - first, bits + first);
    }
  }
  const std::byte* indices = source + bytes - escape_bytes;
  const std::byte* patterns = indices + header.num_escapes * sizeof(uint16_t);
  for (int64_t i = 0; i < header.num_escapes; ++i) {
    uint16_t index;
    std::memcpy(&index, indices + i * sizeof(index), sizeof(index));
    if (index >= count) {
      return false;
    }
    std::memcpy(&bits[index], patterns + i * sizeof(Bits), sizeof(Bits));
  }
  return words == end && coder.is_at_start();
}

template <typename Format>
constexpr WeightKernels kWeightKernels = {.encode = encode_weight_block<Format>, .decode = decode_weight_block<Format>};

constexpr WeightKernelTable kWeightKernelTable = {.bfloat16 = kWeightKernels<BFloat16Weights>,
                                                  .float16 = kWeightKernels<Float16Weights>,
                                                  .float32 = kWeightKernels<Float32Weights>};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE

namespace isthmus::kernels {

const WeightKernelTable& weight_kernels_of(ISTHMUS_KERNEL_NAMESPACE::Instructions /*set*/) {
  return ISTHMUS_KERNEL_NAMESPACE::kWeightKernelTable;
}

}  // namespace isthmus::kernels
