// A decoder of one coded block of weight differences, written for reading: one element after the other, from the
// description in docs/weights.md.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/weights/laws.h"

namespace isthmus::test {

class ReferenceWeightDecoder {
 public:
  ReferenceWeightDecoder(int mantissa_bits, int exponent_bits)
      : mantissa_bits_(mantissa_bits), exponent_bits_(exponent_bits), bits_(1 + exponent_bits + mantissa_bits) {}

  std::vector<uint32_t> decode(const std::vector<uint8_t>& block, std::vector<uint32_t> weights) {
    block_ = &block;
    const uint16_t num_escapes = word_at(48);
    place_ = 50;
    for (int lane = 0; lane < 16; ++lane) {
      states_[lane] = word_at(16 + 2 * lane);
      refill(states_[lane]);
    }
    for (size_t first = 0; first < weights.size(); first += 16) {
      decode_step(first, static_cast<int8_t>(block[first / 1024]), weights);
    }
    const size_t pattern_bytes = bits_ / 8;
    const size_t indices = block.size() - num_escapes * (2 + pattern_bytes);
    for (size_t i = 0; i < num_escapes; ++i) {
      uint32_t pattern = 0;
      std::memcpy(&pattern, &block[indices + 2 * num_escapes + i * pattern_bytes], pattern_bytes);
      weights.at(word_at(indices + 2 * i)) = pattern;
    }
    return weights;
  }

 private:
  struct Law {
    int row;
    int plain_bits;
  };

  uint16_t word_at(size_t place) const { return static_cast<uint16_t>((*block_)[place] | (*block_)[place + 1] << 8); }

  void refill(uint32_t& state) {
    if (state < 1024) {
      state = state << 16 | word_at(place_);
      place_ += 2;
    }
  }

  Law law_of(uint32_t old_bits, int moved) const {
    if (old_bits == 0) {
      return {0, 0};
    }
    const int bias = (1 << (exponent_bits_ - 1)) - 1;
    const int exponent = static_cast<int>(old_bits >> mantissa_bits_ & ((1U << exponent_bits_) - 1));
    const int size = moved - (std::max(exponent, 1) - bias - mantissa_bits_);
    if (size <= 1) {
      return {std::max(size, -9) + 9, 0};
    }
    if (size <= mantissa_bits_ - 2) {
      return {11, size - 1};
    }
    return {12 + std::min(size - (mantissa_bits_ - 1), 3), mantissa_bits_};
  }

  void decode_step(size_t first, int moved, std::vector<uint32_t>& weights) {
    std::array<Law, 16> laws{};
    std::array<int, 16> tokens{};
    std::array<uint32_t, 16> plain{};
    bool any_plain = false;
    for (size_t lane = 0; lane < 16; ++lane) {
      laws[lane] = law_of(first + lane < weights.size() ? weights[first + lane] : 0, moved);
      any_plain |= laws[lane].plain_bits > 0;
      uint32_t& state = states_[lane];
      uint32_t slot = state % 1024;
      int& token = tokens[lane];
      while (slot >= kernels::kWeightFrequencies[laws[lane].row][token]) {
        slot -= kernels::kWeightFrequencies[laws[lane].row][token++];
      }
      state = kernels::kWeightFrequencies[laws[lane].row][token] * (state / 1024) + slot;
      refill(state);
    }
    for (int done = 0; any_plain && done < mantissa_bits_; done += 10) {
      for (size_t lane = 0; lane < 16; ++lane) {
        const int now = std::clamp(laws[lane].plain_bits - done, 0, 10);
        plain[lane] |= states_[lane] % (1U << now) << done;
        states_[lane] >>= now;
        refill(states_[lane]);
      }
    }
    for (size_t lane = 0; lane < 16 && first + lane < weights.size(); ++lane) {
      weights[first + lane] = moved_from(weights[first + lane], laws[lane], tokens[lane], plain[lane], moved);
    }
  }

  // As integers in the order of the values.
  int64_t rank_of(uint32_t pattern) const {
    const uint32_t sign = 1U << (bits_ - 1);
    return (pattern & sign) != 0 ? -int64_t{pattern & (sign - 1)} - 1 : int64_t{pattern};
  }
  uint32_t pattern_of(int64_t rank) const {
    const uint32_t sign = 1U << (bits_ - 1);
    return rank < 0 ? sign | static_cast<uint32_t>(-rank - 1) : static_cast<uint32_t>(rank);
  }

  uint32_t moved_from(uint32_t old_bits, Law law, int token, uint32_t plain, int moved) const {
    if (token == 31) {
      return old_bits;  // the new pattern comes with the escapes
    }
    if (law.row < 12) {
      return pattern_of(rank_of(old_bits) + (int64_t{token - 15} << law.plain_bits) + plain);
    }
    const int bias = (1 << (exponent_bits_ - 1)) - 1;
    const int exponent = moved + bias + 3 - token / 2;
    const uint32_t sign = (old_bits >> (bits_ - 1)) ^ (token % 2);
    return sign << (bits_ - 1) | static_cast<uint32_t>(exponent) << mantissa_bits_ | plain;
  }

  const int mantissa_bits_;
  const int exponent_bits_;
  const int bits_;
  const std::vector<uint8_t>* block_ = nullptr;
  size_t place_ = 0;
  std::array<uint32_t, 16> states_{};
};

}  // namespace isthmus::test
