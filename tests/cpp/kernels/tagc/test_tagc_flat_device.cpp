// The single-tier form of tagc on emulated groups, where other limits than a release's, and groups of other sizes, show
// what small data cannot. All else is the subject of tests/cpp/gpu/device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "isthmus/error.h"
#include "kernels/tagc/flat.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/support/on_device.h"
#include "tests/cpp/support/packets.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {
namespace {

constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7};
constexpr int kChunks = 3;

Options options_of(double ratio, double sparsity) {
  Options options;
  options.tiers = TierMode::kFlat;
  options.ratio = ratio;
  options.sparsity = sparsity;
  return options;
}

// Memory of one form.
struct Arrays {
  Arrays(const TagcFlat& flat, const std::vector<float>& first_residuals, int64_t chunk_elements)
      : residuals(first_residuals),
        indexes(kChunks * flat.index_bytes(chunk_elements)),
        sketches(kChunks * flat.sketch_elements(chunk_elements) * 4),
        out(static_cast<size_t>(chunk_elements), kNan) {}

  Buffer cells() { return {sketches.data(), sketches.buffer().bytes() / 4, DataType::kFloat32}; }
  FlatChunks chunks(ConstBuffer gradient) {
    return {kChunks, gradient, buffer_of(residuals), indexes.buffer(), cells()};
  }
  bool ends_intact() { return indexes.ends_intact() && sketches.ends_intact(); }

  std::vector<float> residuals;
  Memory indexes;
  Memory sketches;
  std::vector<float> out;
};

Workspace workspace(Memory& memory) { return {{}, memory.buffer()}; }

// What all ranks but one put into the first shard: the other chunks.
void merge_chunks(TagcFlat& flat, Arrays& arrays, int64_t index_bytes, int64_t cells) {
  float* sums = arrays.cells().as<float>();
  for (int chunk = 1; chunk < kChunks; ++chunk) {
    flat.merge(arrays.indexes.buffer().part(chunk, index_bytes), arrays.indexes.buffer().part(0, index_bytes), {});
    for (int64_t cell = 0; cell < cells; ++cell) {
      sums[cell] += sums[chunk * cells + cell];
    }
  }
}

void expect_as_on_cpu(const Options& options, const std::vector<float>& values, DataType dtype, Cut cut,
                      TagcLimits limits = {}) {
  const auto num_elements = static_cast<int64_t>(values.size()) / kChunks;
  SCOPED_TRACE(testing::Message() << num_elements << " elements, ratio " << options.ratio << ", sparsity "
                                  << options.sparsity << ", " << to_string(dtype) << ", " << cut.num_threads
                                  << " threads, " << cut.max_groups << " groups");
  const Array gradient(values, dtype);
  CutLauncher launcher(cut);
  kernels::DeviceCounts counts;
  TagcFlatOnHost host(options, limits);
  TagcFlatOnDevice device(options, {launcher, &counts}, limits);
  const std::vector<float> residuals = make_piece(Data::kHeavyTail, kChunks * num_elements, 12);
  Arrays on_host(host, residuals, num_elements);
  Arrays on_device(device, residuals, num_elements);

  CodecCounts expected = host.encode(on_host.chunks(gradient.view()), kContext, {});
  Memory scratch(device.encode_scratch_bytes(on_device.chunks(gradient.view())));
  CodecCounts counted = device.encode(on_device.chunks(gradient.view()), kContext, workspace(scratch));
  ASSERT_TRUE(on_device.indexes.copy() == on_host.indexes.copy());
  ASSERT_EQ(first_difference(on_device.cells(), on_host.cells()), -1) << "of the cells";
  ASSERT_EQ(bits_of(on_device.residuals), bits_of(on_host.residuals));

  const int64_t index_bytes = host.index_bytes(num_elements);
  const int64_t cells = host.sketch_elements(num_elements);
  merge_chunks(host, on_host, index_bytes, cells);
  merge_chunks(device, on_device, index_bytes, cells);
  ASSERT_TRUE(on_device.indexes.copy() == on_host.indexes.copy());
  expected += host.decode(on_host.indexes.buffer().part(0, index_bytes), on_host.cells().part(0, cells),
                          buffer_of(on_host.out), kContext, {});
  Memory scratch_to_decode(device.decode_scratch_bytes(num_elements));
  counted += device.decode(on_device.indexes.buffer().part(0, index_bytes), on_device.cells().part(0, cells),
                           buffer_of(on_device.out), kContext, workspace(scratch_to_decode));
  ASSERT_EQ(bits_of(on_device.out), bits_of(on_host.out));
  EXPECT_TRUE(on_device.ends_intact() && scratch.ends_intact() && scratch_to_decode.ends_intact());

  EXPECT_EQ(counted.encoded_elements, expected.encoded_elements);
  EXPECT_EQ(static_cast<int64_t>(counts.kept_elements), expected.kept_elements);
  EXPECT_EQ(counts.chosen_elements, counts.kept_elements);
  EXPECT_EQ(static_cast<int64_t>(counts.non_finite_blocks), expected.non_finite_blocks);
  EXPECT_EQ(static_cast<int64_t>(counts.estimated_elements), expected.estimated_elements);
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
    expect_as_on_cpu(options_of(1, .999), values, DataType::kFloat32, {8, 2}, {.block_elements = 64});
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
  flat.decode(index.buffer(), buffer_of(sketch), buffer_of(out).slice(0, 1001), kContext, workspace(scratch));
  EXPECT_EQ(std::count(out.begin(), out.end(), 0), 1001);
  EXPECT_EQ(std::count(out.begin() + 1001, out.end(), 5), 64);
  EXPECT_EQ(counts.estimated_elements, 0);
}

TEST(TagcFlatDevice, RefusesWrongMemory) {
  CutLauncher launcher({16, 2});
  kernels::DeviceCounts counts;
  TagcFlatOnDevice flat(options_of(4, .9), {launcher, &counts});
  const std::vector<float> gradient(kChunks * 100);
  Arrays arrays(flat, std::vector<float>(kChunks * 100), 100);
  const FlatChunks chunks = arrays.chunks(buffer_of(gradient));
  Memory scratch(flat.encode_scratch_bytes(chunks));
  EXPECT_THROW(flat.encode(chunks, kContext, {{}, scratch.buffer().slice(0, scratch.buffer().bytes() - 1)}), Error);
  FlatChunks wrong = chunks;
  wrong.gradient.dtype = DataType::kFloat64;
  EXPECT_THROW(flat.encode(wrong, kContext, workspace(scratch)), Error);
  wrong = chunks;
  wrong.residuals.num_elements -= 1;
  EXPECT_THROW(flat.encode(wrong, kContext, workspace(scratch)), Error);
  EXPECT_NO_THROW(flat.encode(chunks, kContext, workspace(scratch)));
}

}  // namespace
}  // namespace isthmus::test
