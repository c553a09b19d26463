// The checksum of packets: its definition on every instruction set, and what damage it finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "codec/checksum.h"
#include "tests/cpp/codec/tagc/tagc_reference.h"

namespace isthmus {
namespace {

constexpr int64_t kMostWords = 150;  // more than twice what is summed at once

std::vector<uint8_t> random_bytes(int64_t num_bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(num_bytes);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random()); });
  return bytes;
}

uint64_t checksum_of(const std::vector<uint8_t>& bytes) {
  Checksum checksum;
  checksum.add(bytes.data(), static_cast<int64_t>(bytes.size()));
  return checksum.value();
}

// With each instruction set; at the end the best is in use again.
class ChecksumOfSet : public testing::TestWithParam<kernels::InstructionSet> {
 protected:
  void SetUp() override { kernels::set_instruction_set(GetParam()); }
  void TearDown() override { kernels::set_instruction_set(kernels::available_instruction_sets().back()); }
};

TEST_P(ChecksumOfSet, IsThatOfTheDocument) {
  for (int64_t num_words = 0; num_words <= kMostWords; ++num_words) {
    for (const int64_t misaligned : {0, 1, 8}) {
      const std::vector<uint8_t> bytes = random_bytes(misaligned + 8 * num_words, static_cast<uint32_t>(num_words));
      Checksum checksum;
      checksum.add(bytes.data() + misaligned, 8 * num_words);
      EXPECT_EQ(checksum.value(), reference::checksum_of_docs(bytes, misaligned)) << num_words << " words";
    }
  }
}

TEST_P(ChecksumOfSet, CopiesWhatItSums) {
  for (const int64_t num_words : {int64_t{0}, int64_t{1}, int64_t{31}, int64_t{33}, kMostWords}) {
    const std::vector<uint8_t> bytes = random_bytes(8 * num_words, 1);
    std::vector<uint8_t> copy(bytes.size() + 2, 7);
    Checksum checksum;
    checksum.copy(bytes.data(), copy.data() + 1, 8 * num_words);
    EXPECT_EQ(checksum.value(), checksum_of(bytes));
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), copy.begin() + 1));
    EXPECT_EQ(copy.front(), 7);
    EXPECT_EQ(copy.back(), 7);
  }
}

TEST_P(ChecksumOfSet, IsTheSumOfItsParts) {
  const std::vector<uint8_t> bytes = random_bytes(8 * kMostWords, 2);
  for (int64_t first = 0; first <= kMostWords; ++first) {
    Checksum second(first);
    second.add(bytes.data() + 8 * first, 8 * (kMostWords - first));
    Checksum begin;
    begin.add(bytes.data(), 8 * first);
    EXPECT_EQ(second.value() + begin.value(), checksum_of(bytes)) << first;
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, ChecksumOfSet, testing::ValuesIn(kernels::available_instruction_sets()));

// The bytes hold what packets have: noise, and many zeros.
class Damage : public testing::TestWithParam<const char*> {
 protected:
  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> bytes = random_bytes(8 * kMostWords, 3);
    if (std::string(GetParam()) == "zeros") {
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = i % 40 == 3 ? bytes[i] : 0;
      }
    }
    return bytes;
  }
};

TEST_P(Damage, OfOneOrTwoBitsIsFound) {
  std::vector<uint8_t> bytes = this->bytes();
  const uint64_t right = checksum_of(bytes);
  const auto flip = [&](size_t bit) { bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8); };
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    flip(bit);
    EXPECT_NE(checksum_of(bytes), right) << bit;
    for (const size_t other : {bit + 1, bit + 32, bit + 64, bit + 512, bit + 4096}) {
      if (other < 8 * bytes.size()) {
        flip(other);
        EXPECT_NE(checksum_of(bytes), right) << bit << ' ' << other;
        flip(other);
      }
    }
    flip(bit);
  }
}

TEST_P(Damage, OfOneHalfOfAWordIsFound) {
  std::vector<uint8_t> bytes = this->bytes();
  const uint64_t right = checksum_of(bytes);
  std::mt19937 random(4);
  for (size_t half = 0; half < bytes.size() / 4; ++half) {
    uint32_t was = 0;
    std::memcpy(&was, &bytes[4 * half], 4);
    for (const uint32_t is : {~was, was + 1, uint32_t{0}, uint32_t{0x80000000}, static_cast<uint32_t>(random())}) {
      std::memcpy(&bytes[4 * half], &is, 4);
      EXPECT_EQ(checksum_of(bytes) == right, is == was) << half << ' ' << is;
    }
    std::memcpy(&bytes[4 * half], &was, 4);
  }
}

TEST_P(Damage, ThatMovesWordsIsFound) {
  const std::vector<uint8_t> given = bytes();
  const uint64_t right = checksum_of(given);
  const auto expect_found = [&](const std::vector<uint8_t>& bytes, int64_t one, int64_t other) {
    EXPECT_EQ(checksum_of(bytes) == right, bytes == given) << one << ' ' << other;
  };
  for (const int64_t unit : {1, 2, 4, 8, 64}) {  // bytes
    for (int64_t one = 0; one < 8 * kMostWords; one += unit) {
      for (const int64_t distance : {unit, 7 * unit, int64_t{64}, int64_t{512}}) {
        if (one + distance + unit <= 8 * kMostWords) {
          std::vector<uint8_t> swapped = given;
          std::swap_ranges(swapped.begin() + one, swapped.begin() + one + unit, swapped.begin() + one + distance);
          expect_found(swapped, one, one + distance);
          std::vector<uint8_t> shifted = given;
          std::copy(given.begin() + one, given.end() - distance, shifted.begin() + one + distance);
          expect_found(shifted, one, distance);
          std::vector<uint8_t> cleared = given;
          std::fill(cleared.begin() + one, cleared.begin() + one + distance, 0);
          expect_found(cleared, one, distance);
        }
      }
    }
  }
}

// Differences that cancel where every word counts the same, or by a weight that grows evenly with its place.
TEST_P(Damage, ThatAddsUpToNothingIsFound) {
  const std::vector<uint8_t> given = bytes();
  const uint64_t right = checksum_of(given);
  for (const std::vector<int32_t>& differences : {std::vector<int32_t>{1, -1}, {1, -2, 1}, {1, -3, 3, -1}}) {
    for (int bit = 0; bit < 32; ++bit) {
      for (size_t first = 0; first + 8 * differences.size() <= given.size(); first += 4) {
        std::vector<uint8_t> damaged = given;
        for (size_t i = 0; i < differences.size(); ++i) {
          uint32_t half = 0;
          std::memcpy(&half, &damaged[first + 8 * i], 4);
          half += static_cast<uint32_t>(differences[i]) << bit;
          std::memcpy(&damaged[first + 8 * i], &half, 4);
        }
        EXPECT_EQ(checksum_of(damaged) == right, damaged == given) << first << ' ' << bit << ' ' << differences.size();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Contents, Damage, testing::Values("noise", "zeros"), [](const auto& of) { return of.param; });

}  // namespace
}  // namespace isthmus
