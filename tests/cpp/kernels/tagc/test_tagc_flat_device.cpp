// The single-tier form of tagc on emulated groups, where other limits than a release's, and groups of other sizes, show
// what small data cannot. All else is the subject of tests/cpp/gpu/device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "isthmus/error.h"
#include "kernels/tagc/flat.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/emulated/emulated_gpu.h"
#include "tests/cpp/support/flat_coding.h"
#include "tests/cpp/support/on_device.h"
#include "tests/cpp/support/packets.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {
namespace {

constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7};
constexpr int kChunks = kFlatChunks;

Options options_of(double ratio, double sparsity) {
  Options options;
  options.tiers = TierMode::kFlat;
  options.ratio = ratio;
  options.sparsity = sparsity;
  return options;
}

void expect_as_on_cpu(const Options& options, const std::vector<float>& values, DataType dtype, Cut cut,
                      TagcLimits limits = {}, int num_steps = 2) {
  SCOPED_TRACE(testing::Message() << values.size() << " elements, ratio " << options.ratio << ", sparsity "
                                  << options.sparsity << ", " << to_string(dtype) << ", " << cut.num_threads
                                  << " threads, " << cut.max_groups << " groups");
  EmulatedGpu gpu(1, cut);
  TagcFlatOnDevice flat(options, gpu.passes(), limits);
  TagcFlatOnHost flat_of_cpu(options, limits);
  expect_flat_as_on_cpu(gpu, flat, flat_of_cpu, Array(values, dtype), num_steps);
}

void expect_as_on_cpu(const Options& options, Data data, int64_t num_elements, Cut cut, TagcLimits limits = {}) {
  SCOPED_TRACE(to_string(data));
  expect_as_on_cpu(options, make_piece(data, kChunks * num_elements, 11), DataType::kFloat32, cut, limits);
}

// Whose threads have cells in several columns.
TEST(TagcFlatDevice, GroupsOfAnySize) {
  for (const int64_t num_threads : {1, 5, 12, 24}) {
    for (const int64_t num_elements : {0, 1, 65, 4097}) {
      expect_as_on_cpu(options_of(2, .8), Data::kHeavyTail, num_elements, {num_threads, 3});
    }
  }
}

TEST(TagcFlatDevice, EveryBlockSizeAndType) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    for (int64_t block_elements = 64; block_elements <= 4096; block_elements *= 4) {
      expect_as_on_cpu(options_of(4, .9), make_piece(Data::kHeavyTail, kChunks * 9001, 4), dtype, {24, 3},
                       {.block_elements = block_elements});
    }
  }
}

// More rounds than are allowed, or no peeling at all.
TEST(TagcFlatDevice, MuchIsEstimated) {
  for (const int64_t rounds : {1, 2, 64}) {
    expect_as_on_cpu(options_of(2, .8), Data::kHeavyTail, 20000, {16, 2}, {.peel_rounds = rounds});
    expect_as_on_cpu(options_of(10, 0), Data::kHeavyTail, 5000, {16, 2}, {.peel_rounds = rounds});
  }
}

// In blocks of a word of the index, and with nothing else.
TEST(TagcFlatDevice, Nan) {
  std::vector<float> values = make_piece(Data::kHeavyTail, kChunks * 5001, 3);
  values[0] = kInfinity;
  values[5001 + 70] = values.back() = kNan;
  expect_as_on_cpu(options_of(10, .9), values, DataType::kBFloat16, {7, 2}, {.block_elements = 64});
  values.assign(values.size(), kNan);
  expect_as_on_cpu(options_of(2, .8), values, DataType::kFloat32, {16, 2});
}

// Degrees in shared memory, and one row more than fit there.
TEST(TagcFlatDevice, TablesInSharedAndInScratchMemory) {
  for (const int64_t num_rows : {40960, 40961}) {
    std::vector<float> values(static_cast<size_t>(kChunks * 64 * num_rows));
    const std::vector<float> some = make_piece(Data::kHeavyTail, 3000, 5);
    for (size_t i = 0; i < some.size(); ++i) {
      values[i * (values.size() / some.size())] = some[i];
    }
    expect_as_on_cpu(options_of(1, .999), values, DataType::kFloat32, {8, 2}, {.block_elements = 64}, 1);
  }
}

TEST(TagcFlatDevice, MarksPastTheEndAreIgnored) {
  CutLauncher launcher({16, 2});
  kernels::DeviceCounts counts;
  TagcFlatOnDevice flat(options_of(4, .9), {launcher, &counts});
  Memory index(flat.index_bytes(1001));
  std::fill_n(index.data(), index.buffer().bytes(), uint8_t{0});
  index.data()[index.buffer().bytes() - 1] = 0x80;
  std::vector<float> sketch(static_cast<size_t>(flat.sketch_elements(1001)), 1);
  std::vector<float> out(1001 + 64, 5);
  Memory scratch(flat.decode_scratch_bytes(1001));
  flat.decode(index.buffer(), buffer_of(sketch), buffer_of(out).slice(0, 1001), kContext, {{}, scratch.buffer()});
  EXPECT_EQ(std::count(out.begin(), out.end(), 0), 1001);
  EXPECT_EQ(std::count(out.begin() + 1001, out.end(), 5), 64);
  EXPECT_EQ(counts.estimated_elements, 0);
}

TEST(TagcFlatDevice, RefusesWrongMemory) {
  EmulatedGpu gpu;
  TagcFlatOnDevice flat(options_of(4, .9), gpu.passes());
  FlatCoding<DeviceArray> arrays(flat, 100, DataType::kFloat32, [&](int64_t num_elements, DataType dtype) {
    return DeviceArray(gpu, num_elements, dtype);
  });
  const FlatChunks chunks = arrays.chunks();
  const Workspace workspace = {gpu.lane(Lane::kEncode), arrays.scratch.buffer()};
  const Buffer too_small = workspace.scratch.slice(0, flat.encode_scratch_bytes(chunks) - 1);
  EXPECT_THROW(flat.encode(chunks, kContext, {workspace.stream, too_small}), Error);
  FlatChunks wrong = chunks;
  wrong.gradient.dtype = DataType::kFloat64;
  EXPECT_THROW(flat.encode(wrong, kContext, workspace), Error);
  wrong = chunks;
  wrong.residuals.num_elements -= 1;
  EXPECT_THROW(flat.encode(wrong, kContext, workspace), Error);
  EXPECT_NO_THROW(flat.encode(chunks, kContext, workspace));
}

}  // namespace
}  // namespace isthmus::test
