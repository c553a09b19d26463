// The checksum of packets: its definition on every instruction set, and what damage it finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/checksum/cpu.h"
#include "tests/cpp/codec/tagc/tagc_reference.h"
#include "tests/cpp/support/instruction_sets.h"

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

TEST(Checksum, IsThatOfTheDocumentInEveryInstructionSet) {
  in_every_instruction_set([] {
    for (int64_t num_words = 0; num_words <= kMostWords; ++num_words) {
      for (const int64_t misaligned : {0, 1, 8}) {
        const std::vector<uint8_t> bytes = random_bytes(misaligned + 8 * num_words, static_cast<uint32_t>(num_words));
        const uint64_t expected = reference::checksum_of_docs(bytes, misaligned);
        Checksum checksum;
        checksum.add(bytes.data() + misaligned, 8 * num_words);
        EXPECT_EQ(checksum.value(), expected) << num_words << " words";
        std::vector<uint8_t> copy(8 * num_words + 2, 7);
        Checksum of_copied;
        of_copied.copy(bytes.data() + misaligned, copy.data() + 1, 8 * num_words);
        EXPECT_EQ(of_copied.value(), expected) << num_words << " words";
        EXPECT_TRUE(std::equal(bytes.begin() + misaligned, bytes.end(), copy.begin() + 1));
        EXPECT_TRUE(copy.front() == 7 && copy.back() == 7) << num_words << " words";
      }
    }
  });
}

TEST(Checksum, IsTheSumOfItsPartsInEveryInstructionSet) {
  const std::vector<uint8_t> bytes = random_bytes(8 * kMostWords, 2);
  in_every_instruction_set([&] {
    for (int64_t first = 0; first <= kMostWords; ++first) {
      Checksum second(first);
      second.add(bytes.data() + 8 * first, 8 * (kMostWords - first));
      Checksum begin;
      begin.add(bytes.data(), 8 * first);
      EXPECT_EQ(second.value() + begin.value(), checksum_of(bytes)) << first;
    }
  });
}

// Mostly zeros, as an index has: every bit, and pairs of bits as far apart as lanes and words are.
TEST(Checksum, FindsOneOrTwoFlippedBits) {
  std::vector<uint8_t> bytes = random_bytes(8 * kMostWords, 3);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = i % 40 == 3 ? bytes[i] : 0;
  }
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

}  // namespace
}  // namespace isthmus
