#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "isthmus/error.h"
#include "kernels/tagc/flat.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/kernels/tagc/tagc_flat_reference.h"
#include "tests/cpp/support/instruction_sets.h"
#include "tests/cpp/support/packets.h"

namespace isthmus {
namespace {

constexpr PacketContext kContext = {.unit_hash = 42, .step = 3};

struct Setting {
  double ratio;
  double sparsity;
};
constexpr Setting kSettings[] = {{2, .8}, {4, .9}, {10, .9875}};

Options options_of(Setting setting) {
  Options options;
  options.tiers = TierMode::kFlat;
  options.ratio = setting.ratio;
  options.sparsity = setting.sparsity;
  return options;
}

reference::TagcParameters parameters_of(const Options& options, TagcLimits limits) {
  return {options.ratio,      options.sparsity,   limits.block_elements,
          limits.peel_rounds, kContext.unit_hash, kContext.step};
}

// What the collectives would bring to the owner of one shard: the merged index and the summed sketch.
struct Merged {
  std::vector<uint64_t> index;  // words, so that it is aligned as any allocation
  std::vector<float> sketch;

  Buffer index_buffer() { return {index.data(), static_cast<int64_t>(index.size()) * 8, DataType::kByte}; }
};

Merged encode(TagcFlat& flat, const std::vector<float>& chunk, std::vector<float>& residual,
              CodecCounts* counts = nullptr) {
  const auto num_elements = static_cast<int64_t>(chunk.size());
  Merged result;
  result.index.assign(flat.index_bytes(num_elements) / 8, 0xa5a5a5a5a5a5a5a5);  // dirty before it is written
  result.sketch.assign(flat.sketch_elements(num_elements), kNan);
  const CodecCounts counted = flat.encode(
      {1, buffer_of(chunk), buffer_of(residual), result.index_buffer(), buffer_of(result.sketch)}, kContext, {});
  if (counts != nullptr) {
    *counts += counted;
  }
  return result;
}

// All ranks' chunks of one shard, encoded from empty residuals and merged in rank order.
Merged encode_all(TagcFlat& flat, const std::vector<std::vector<float>>& chunks) {
  Merged sum;
  for (const std::vector<float>& chunk : chunks) {
    std::vector<float> residual(chunk.size());
    Merged one = encode(flat, chunk, residual);
    if (sum.sketch.empty()) {
      sum = one;
      continue;
    }
    flat.merge(one.index_buffer(), sum.index_buffer(), {});
    for (size_t cell = 0; cell < sum.sketch.size(); ++cell) {
      sum.sketch[cell] += one.sketch[cell];
    }
  }
  return sum;
}

std::vector<float> decode(TagcFlat& flat, Merged merged, int64_t num_elements, CodecCounts* counts = nullptr) {
  std::vector<float> out(num_elements, kNan);
  const CodecCounts counted =
      flat.decode(merged.index_buffer(), buffer_of(merged.sketch), buffer_of(out), kContext, {});
  if (counts != nullptr) {
    *counts += counted;
  }
  return out;
}

std::vector<std::vector<float>> make_chunks(Data data, int64_t num_elements, int ranks) {
  std::vector<std::vector<float>> chunks;
  for (int rank = 0; rank < ranks; ++rank) {
    chunks.push_back(make_piece(data, num_elements, 100 + rank));
  }
  return chunks;
}

// Equal as numbers, or both NaN.
void expect_same(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i])))
        << i << ": " << actual[i] << " where " << expected[i] << " is expected";
  }
}

void expect_equal_to_reference(const Options& options, Data data, int64_t num_elements, int ranks,
                               TagcLimits limits = {}) {
  SCOPED_TRACE(testing::Message() << to_string(data) << ", " << num_elements << " elements, " << ranks
                                  << " ranks, ratio " << options.ratio);
  TagcFlatOnHost flat(options, limits);
  const reference::TagcParameters parameters = parameters_of(options, limits);
  std::set<int64_t> marked;
  std::vector<float> expected_sketch;
  Merged sum;
  for (const std::vector<float>& chunk : make_chunks(data, num_elements, ranks)) {
    std::vector<float> residual = make_piece(Data::kHeavyTail, num_elements, 99);
    std::vector<float> expected_residual = residual;
    Merged one = encode(flat, chunk, residual);
    const reference::FlatChunk expected = reference::encode_flat(parameters, chunk, expected_residual);
    expect_same(residual, expected_residual);
    expect_same(one.sketch, expected.sketch);
    std::vector<uint64_t> expected_index(one.index.size());
    for (size_t element = 0; element < expected.index.size(); ++element) {
      expected_index[element / 64] |= static_cast<uint64_t>(expected.index[element]) << element % 64;
      if (expected.index[element] != 0) {
        marked.insert(static_cast<int64_t>(element));
      }
    }
    ASSERT_EQ(one.index, expected_index);
    if (expected_sketch.empty()) {
      sum = one;
      expected_sketch = expected.sketch;
      continue;
    }
    flat.merge(one.index_buffer(), sum.index_buffer(), {});
    for (size_t cell = 0; cell < expected_sketch.size(); ++cell) {
      sum.sketch[cell] += one.sketch[cell];
      expected_sketch[cell] += expected.sketch[cell];
    }
  }
  const auto [expected, estimated] = reference::decode_flat(parameters, num_elements, marked, expected_sketch);
  CodecCounts counts;
  expect_same(decode(flat, sum, num_elements, &counts), expected);
  EXPECT_EQ(counts.estimated_elements, estimated);
}

TEST(TagcFlat, EqualsReferenceAtAllSizesAndLevels) {
  for (const Setting setting : kSettings) {
    for (const int64_t num_elements : {0, 1, 63, 64, 65, 1023, 1024, 1025, 4097, 12345, 100003}) {
      expect_equal_to_reference(options_of(setting), Data::kHeavyTail, num_elements, 2);
    }
  }
}

TEST(TagcFlat, EqualsReferenceOnDifficultData) {
  for (const Data data : all_data()) {
    expect_equal_to_reference(options_of(kSettings[2]), data, 20001, 3);
    expect_equal_to_reference(options_of(kSettings[1]), data, 4097, 15);
  }
}

TEST(TagcFlat, EqualsReferenceWhereMuchIsEstimated) {
  expect_equal_to_reference(options_of(kSettings[0]), Data::kHeavyTail, 30000, 8);
  expect_equal_to_reference(options_of(kSettings[0]), Data::kHeavyTail, 30000, 2, {.peel_rounds = 1});
  expect_equal_to_reference(options_of({10, 0}), Data::kHeavyTail, 5000, 2);
}

TEST(TagcFlat, AllInstructionSetsGiveTheSameBits) {
  in_every_instruction_set([] {
    for (const Setting setting : kSettings) {
      expect_equal_to_reference(options_of(setting), Data::kHeavyTail, 50001, 4);
    }
  });
}

TEST(TagcFlat, NonFiniteElementsReachTheOwnerAndLeaveTheResidual) {
  TagcFlatOnHost flat(options_of({10, .9}));
  const int64_t num_elements = 5001;
  auto chunks = make_chunks(Data::kHeavyTail, num_elements, 3);
  chunks[1][0] = kInfinity;
  chunks[1][70] = kNan;
  chunks[2][70] = 1;
  chunks[2][num_elements - 1] = -kInfinity;
  std::vector<float> residual = make_piece(Data::kHeavyTail, num_elements, 1);
  const std::vector<float> old_residual = residual;
  CodecCounts counts;
  encode(flat, chunks[1], residual, &counts);
  EXPECT_EQ(counts.non_finite_blocks, 2);
  for (int64_t i = 0; i < 128; ++i) {
    EXPECT_EQ(residual[i], old_residual[i]);
  }
  const std::vector<float> out = decode(flat, encode_all(flat, chunks), num_elements);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[70]));
  EXPECT_TRUE(std::isnan(out[num_elements - 1]));
}

TEST(TagcFlat, IndexPastTheEndIsIgnored) {
  TagcFlatOnHost flat(options_of({4, .9}));
  Merged merged = encode_all(flat, make_chunks(Data::kHeavyTail, 1001, 2));
  const std::vector<float> expected = decode(flat, merged, 1001);
  merged.index.back() |= 0x8000000000000000;
  EXPECT_EQ(decode(flat, merged, 1001), expected);
}

TEST(TagcFlat, Sizes) {
  TagcFlatOnHost flat(options_of({10, .9875}));
  const int64_t num_elements = int64_t{1} << 20;
  EXPECT_EQ(flat.index_bytes(num_elements), num_elements / 8);
  EXPECT_EQ(flat.sketch_elements(num_elements), 103 * 1024);
  EXPECT_EQ(flat.index_bytes(0), 0);
  EXPECT_EQ(flat.sketch_elements(0), 0);
}

TEST(TagcFlat, RejectsWrongBuffers) {
  TagcFlatOnHost flat(options_of({10, .9875}));
  std::vector<float> chunk(100);
  std::vector<float> residual(99);
  EXPECT_THROW(encode(flat, chunk, residual), Error);
  residual.resize(100);
  Merged merged = encode(flat, chunk, residual);
  EXPECT_THROW(decode(flat, merged, 1000), Error);
  merged.sketch.pop_back();
  EXPECT_THROW(decode(flat, merged, 100), Error);
}

}  // namespace
}  // namespace isthmus
