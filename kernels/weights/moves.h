// How far the elements of a group moved: the encoder's estimate, the same on every executor.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/block/float_types.h"
#include "kernels/block/group.h"
#include "kernels/weights/block.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

ISTHMUS_DEVICE float weight_value(BFloat16Weights /*format*/, uint16_t bits) { return to_float32(BFloat16{bits}); }
ISTHMUS_DEVICE float weight_value(Float16Weights /*format*/, uint16_t bits) { return to_float32(Float16{bits}); }
ISTHMUS_DEVICE float weight_value(Float32Weights /*format*/, uint32_t bits) { return std::bit_cast<float>(bits); }

// Sums the moves of several elements. Each of the 16 lanes sums its own in order; elements that fill no step of 16 go
// to lane 0. Then the lanes' sums are added in the order of lanes.
struct WeightMoves {
  float sum = 0;
  float largest = 0;

  ISTHMUS_DEVICE void add(float counted) {
    sum += counted;
    largest = largest > counted ? largest : counted;
  }
  ISTHMUS_DEVICE void add(const WeightMoves& lane) {
    sum += lane.sum;
    largest = largest > lane.largest ? largest : lane.largest;
  }
};

// How far an element moved. It is 0 if the move exceeds both `most` and a 16th of the old value, or is not a number.
// (Where most elements stay, one unit's step of a large weight is many means long.)
template <typename Format>
ISTHMUS_DEVICE float counted_move(typename Format::Bits old_bits, typename Format::Bits new_bits, float most) {
  const float old_value = weight_value(Format{}, old_bits);
  const float move = std::fabs(weight_value(Format{}, new_bits) - old_value);
  const float limit = larger(most, std::fabs(old_value) * 0.0625F);
  return move <= limit ? move : 0;
}

// log2, rounded; -128 for what is not above 0. It uses no logarithm, because libraries differ in the last bit.
ISTHMUS_DEVICE int8_t rounded_log2(double value) {
  constexpr int kMantissaBits = 52;
  constexpr int kBias = 1023;
  constexpr uint64_t kMantissa = (uint64_t{1} << kMantissaBits) - 1;
  constexpr uint64_t kRootOfTwo = 0x6a09e667f3bcd;  // its mantissa
  if (!(value > 0)) {
    return -128;
  }
  const auto bits = std::bit_cast<uint64_t>(value);
  const int rounded = static_cast<int>(bits >> kMantissaBits) - kBias + ((bits & kMantissa) >= kRootOfTwo ? 1 : 0);
  return static_cast<int8_t>(smaller(127, larger(-128, rounded)));
}

// log2 of the mean distance between old and new values, rounded. A few long moves among many short ones, as when one
// weight is edited, do not count: they become escapes. Only the encoder uses this; a misjudgement costs bits, not
// correctness.
//
//   while (!estimate.is_done()) estimate.take(the moves of all elements as counted_move(..., estimate.most()) has them)
class MoveEstimate {
 public:
  explicit ISTHMUS_DEVICE MoveEstimate(int64_t count) : count_(static_cast<float>(count)) {}

  ISTHMUS_DEVICE bool is_done() const { return is_done_; }
  ISTHMUS_DEVICE float most() const {
    return round_ == 0 ? std::numeric_limits<float>::max() : kLeap * moves_.sum / count_;
  }
  // Does nothing if it is done.
  ISTHMUS_DEVICE void take(const WeightMoves& found) {
    const bool none_was_a_leap = round_ > 0 && found.sum == moves_.sum;
    if (!is_done_ && !none_was_a_leap) {
      moves_ = found;
    }
    is_done_ = is_done_ || none_was_a_leap || round_ == kMostRounds || !(moves_.largest * count_ > kLeap * moves_.sum);
    ++round_;
  }
  ISTHMUS_DEVICE int8_t log2_of_mean() const { return rounded_log2(double{moves_.sum} / double{count_}); }

 private:
  static constexpr float kLeap = 32;     // means: hardly any move of a logistic law is as far
  static constexpr int kMostRounds = 3;  // after the first

  float count_;
  int round_ = 0;
  bool is_done_ = false;
  WeightMoves moves_;
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
