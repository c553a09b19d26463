// Tensors of more than 2^31 bytes, and a piece of more than 2^31 elements: nothing is counted in 32 bits. Up to 14 GiB
// of memory, so that these run by themselves: make test-large.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>

#include "base/aligned_memory.h"
#include "isthmus/codec.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

constexpr int64_t kElements = (int64_t{1} << 29) + 4 * 1025;  // of float32: more than 2^31 bytes
constexpr int64_t kWindow = 1 << 20;
constexpr milliseconds kPatience(600000);
constexpr PacketContext kContext = {.unit_hash = 7, .step = 1};

// Uninitialised float32.
class LargeArray {
 public:
  explicit LargeArray(int64_t num_elements)
      : memory_(allocate_aligned(4 * num_elements)), num_elements_(num_elements) {}

  float* data() { return reinterpret_cast<float*>(memory_.get()); }
  Buffer buffer() { return {memory_.get(), num_elements_, DataType::kFloat32}; }

 private:
  AlignedMemory memory_;
  int64_t num_elements_;
};

// A whole number from -128 to 127, so that sums are exact. It has no period below 2^56: what stands at a wrong place
// differs.
float pattern(int64_t i) { return static_cast<int8_t>(static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15U >> 56); }

void fill(LargeArray& array, int64_t first = 0) {
  const Buffer buffer = array.buffer();
  for (int64_t i = 0; i < buffer.num_elements; ++i) {
    array.data()[i] = pattern(first + i);
  }
}

// The largest squared error, relative to the pattern's own square, of any window of the array, which should hold
// `factor` times the pattern from `first` on.
double largest_error(LargeArray& array, int64_t first = 0, float factor = 1) {
  const int64_t num_elements = array.buffer().num_elements;
  double largest = 0;
  for (int64_t begin = 0; begin < num_elements; begin += kWindow) {
    double error = 0;
    double square = 0;
    for (int64_t i = begin; i < std::min(begin + kWindow, num_elements); ++i) {
      const double expected = factor * pattern(first + i);
      const double difference = array.data()[i] - expected;
      error += difference * difference;
      square += expected * expected;
    }
    largest = std::fmax(largest, error / square);
    if (std::isnan(error)) {
      return error;
    }
  }
  return largest;
}

struct LargeCase {
  std::string codec;
  double error;  // the most that it may make; another place's numbers make 2
};

Options options_of(const LargeCase& large) {
  Options options;
  options.codec = large.codec;
  options.error_interval = 0;
  return options;
}

// Rather a failure than a machine without memory.
testing::AssertionResult has_memory(int64_t gib) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  while (file >> name && name != "MemAvailable:") {
  }
  file >> kib;
  return kib >> 20 >= gib
             ? testing::AssertionSuccess()
             : testing::AssertionFailure() << "it takes " << gib << " GiB of memory, and there are " << (kib >> 20);
}

class LargeReduceScatter : public testing::TestWithParam<LargeCase> {};

// Of 16 chunks the last begins beyond 2^31 bytes.
TEST_P(LargeReduceScatter, IsRightEverywhere) {
  constexpr int64_t kGradientElements = 16 * 35793750;
  ASSERT_TRUE(has_memory(13));
  World world(NodeMap::parse("2x8", 16), options_of(GetParam()), kPatience);
  LargeArray gradient(kGradientElements);  // of all ranks
  fill(gradient);
  const int64_t chunk = kGradientElements / world.size();
  run_ranks_well(world.size(), [&](int rank) {
    LargeArray shard(chunk);
    world.ranks[rank]->reduce_scatter(gradient.buffer(), shard.buffer(),
                                      {{"unit", kGradientElements, DataType::kFloat32}, 0.125});
    EXPECT_LE(largest_error(shard, rank * chunk, 2), GetParam().error) << "rank " << rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Codecs, LargeReduceScatter,
                         testing::Values(LargeCase{"none", 0}, LargeCase{Options().codec, .02}),
                         [](const auto& parameter) { return parameter.param.codec; });

// The second shard belongs beyond 2^31 bytes.
TEST(Large, AllGather) {
  ASSERT_TRUE(has_memory(14));
  constexpr int64_t kShard = kElements + 1;
  World world(NodeMap::parse("2x1", 2), exact_options(), kPatience);
  run_ranks_well(world.size(), [&](int rank) {
    LargeArray shard(kShard);
    LargeArray gathered(2 * kShard);
    fill(shard, rank * kShard);
    world.ranks[rank]->all_gather(shard.buffer(), gathered.buffer());
    EXPECT_EQ(largest_error(gathered), 0) << "rank " << rank;
  });
}

// Encodes a piece and decodes it in the same memory. What a codec with error feedback does not send, its residual
// holds.
void expect_to_arrive(const Options& options, int64_t num_elements, double error) {
  ASSERT_TRUE(has_memory(9));
  const std::unique_ptr<HostCodec> codec = make_codec(options.codec, options, DataType::kFloat32, 1);
  LargeArray piece(num_elements);
  fill(piece);
  const int64_t packet_bytes = codec->packet_bytes(num_elements);
  const AlignedMemory memory = allocate_aligned(packet_bytes);
  const Buffer packet = {memory.get(), packet_bytes, DataType::kByte};
  LargeArray residual(codec->keeps_residual() ? num_elements : 0);
  std::fill_n(residual.data(), residual.buffer().num_elements, 0.0F);
  const CodecCounts sent = codec->encode(piece.buffer(), residual.buffer(), packet, kContext, {});
  EXPECT_EQ(sent.encoded_elements, num_elements);
  std::fill_n(piece.data(), num_elements, 0.0F);
  codec->decode_sum(packet, 1, piece.buffer(), kContext, {});
  if (codec->keeps_residual()) {
    const auto expected = static_cast<double>(num_elements) * (1 - options.sparsity);
    EXPECT_NEAR(static_cast<double>(sent.kept_elements + sent.held_back_elements), expected, .1 * expected);
    EXPECT_GT(largest_error(piece), .5);  // little was sent
    accumulate(residual.buffer(), piece.buffer());
  }
  EXPECT_LE(largest_error(piece), error);
}

TEST(Large, PiecesOfMoreThan32BitsOfBytesInCodecNone) { expect_to_arrive(options_of({"none", 0}), kElements + 1, 0); }
TEST(Large, PiecesOfMoreThan32BitsOfBytesInCodecQuant) {
  expect_to_arrive(options_of({"quant", 0}), kElements + 1, .02);
}
TEST(Large, PiecesOfMoreThan32BitsOfBytesInCodecTagc) {
  expect_to_arrive(options_of({"tagc", 0}), kElements + 1, 1e-12);
}
TEST(Large, PiecesOfMoreThan31BitsOfElements) {
  expect_to_arrive(options_of({"quant", 0}), (int64_t{1} << 31) + 1025, .02);
}

}  // namespace
}  // namespace isthmus::test
