// Codec tagc's passes for a device, on emulated groups, against the CPU codec: packets, residuals, counts and sums, bit
// for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "codec/tagc/host.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/codec/tagc/tagc_on_device.h"
#include "tests/cpp/codec/tagc/tagc_reference.h"
#include "tests/cpp/support/packets.h"

// What is called by itself.
#include "kernels/tagc/insert_passes.h"

namespace isthmus {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr TagcLimits kBlocksOf256 = {.block_elements = 256};

// One encoding and its decoding, on the device as on the CPU.
void expect_as_on_cpu(const Options& options, const std::vector<float>& piece, const std::vector<float>& residual,
                      Cut cut, PacketContext context = kContext, TagcLimits limits = {}) {
  SCOPED_TRACE(testing::Message() << piece.size() << " elements, ratio " << options.ratio << ", sparsity "
                                  << options.sparsity << ", blocks " << limits.block_elements << ", " << cut.num_threads
                                  << " threads, " << cut.max_groups << " groups");
  TagcCodec cpu(options, limits);
  Packet packet = new_packet(cpu, static_cast<int64_t>(piece.size()));
  std::vector<float> expected_residual = residual;
  const CodecCounts expected = encode(cpu, piece, expected_residual, packet, context);
  const Encoded encoded = encode_on_device(options, piece, residual, context, cut, limits);
  ASSERT_EQ(encoded.packet, packet.copy());
  ASSERT_EQ(bits_of(encoded.residual), bits_of(expected_residual));
  const kernels::DeviceCounts& counts = encoded.counts;
  EXPECT_EQ(static_cast<int64_t>(counts.kept_elements), expected.kept_elements);
  EXPECT_EQ(static_cast<int64_t>(counts.chosen_elements - counts.kept_elements), expected.held_back_elements);
  EXPECT_EQ(static_cast<int64_t>(counts.non_finite_blocks), expected.non_finite_blocks);

  std::vector<float> expected_out(piece.size(), .125F);
  std::vector<float> out = expected_out;
  cpu.decode_sum(packet.buffer(), 1, buffer_of(expected_out), context, {});
  EXPECT_EQ(decode_on_device(options, encoded.packet, 1, out, context, cut, limits).code, kernels::DeviceFault::kNone);
  ASSERT_EQ(bits_of(out), bits_of(expected_out));
}

void expect_as_on_cpu(const Options& options, Data data, int64_t num_elements, Cut cut, TagcLimits limits = {}) {
  SCOPED_TRACE(to_string(data));
  const std::vector<float> piece = make_piece(data, num_elements, 11);
  expect_as_on_cpu(options, piece, make_piece(Data::kHeavyTail, num_elements, 12), cut, kContext, limits);
  expect_as_on_cpu(options, piece, std::vector<float>(num_elements), cut, kContext, limits);
}

TEST(TagcDevice, AllSizesAndCuts) {
  for (const Cut cut : kCuts) {
    for (const int64_t num_elements : {0, 1, 2, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 12345}) {
      expect_as_on_cpu(options_of(10, .9875), Data::kHeavyTail, num_elements, cut);
      expect_as_on_cpu(options_of(2, .8), Data::kHeavyTail, num_elements, cut);
    }
  }
}

TEST(TagcDevice, DifficultData) {
  for (const Data data : all_data()) {
    for (const int64_t num_elements : {65, 4097, 20011}) {
      expect_as_on_cpu(options_of(10, .9875), data, num_elements, {17, 3});
      expect_as_on_cpu(options_of(2, .5), data, num_elements, {17, 3});
    }
  }
}

TEST(TagcDevice, EveryBlockSize) {
  for (int64_t block_elements = 64; block_elements <= 4096; block_elements *= 2) {
    for (const int64_t num_elements : {1, 4095, 4096, 4097, 12289}) {
      expect_as_on_cpu(options_of(4, .9), Data::kHeavyTail, num_elements, {20, 3}, {.block_elements = block_elements});
    }
  }
}

TEST(TagcDevice, ShortCells) {
  for (const char* cell_type : {"bf16", "fp16", "int8"}) {
    SCOPED_TRACE(cell_type);
    const auto with_cells = [cell_type](Options options) {
      options.cell_type = cell_type;
      return options;
    };
    for (const Cut cut : kCuts) {
      for (const int64_t num_elements : {0, 1, 63, 64, 65, 4095, 4097, 12345}) {
        expect_as_on_cpu(with_cells(options_of(4, .9)), Data::kHeavyTail, num_elements, cut);
      }
      expect_as_on_cpu(with_cells(options_of(10, .5)), Data::kHeavyTail, 9000, cut);
    }
    for (const Data data : all_data()) {
      expect_as_on_cpu(with_cells(options_of(2, .5)), data, 20011, {17, 3});
    }
    for (int64_t block_elements = 64; block_elements <= 4096; block_elements *= 4) {
      expect_as_on_cpu(with_cells(options_of(4, .9)), Data::kHeavyTail, 12289, {20, 3},
                       {.block_elements = block_elements});
    }
    std::vector<float> piece = make_piece(Data::kHeavyTail, 5000, 6);
    piece[300] = kNan;
    piece[1024] = -kInfinity;
    expect_as_on_cpu(with_cells(options_of(4, .9)), piece, std::vector<float>(5000), {33, 5}, kContext, kBlocksOf256);
  }
}

TEST(TagcDevice, RowsByLoad) {
  for (const double sparsity : {0.0, .9, .9875}) {
    for (const int64_t num_elements : {0, 1, 65, 4097, 70001}) {
      expect_as_on_cpu(options_of(0, sparsity), Data::kHeavyTail, num_elements, {32, 3});
    }
  }
}

TEST(TagcDevice, AllKeptAndMuchHeldBack) {
  for (const Cut cut : {Cut{5, 2}, Cut{64, 3}}) {
    expect_as_on_cpu(options_of(1, 0), Data::kHeavyTail, 5000, cut);
    expect_as_on_cpu(options_of(10, 0), Data::kAllEqual, 5000, cut);
    expect_as_on_cpu(options_of(10, .9), Data::kHeavyTail, 20000, cut);
    for (const int64_t rounds : {1, 2, 3}) {
      expect_as_on_cpu(options_of(4, .8), Data::kHeavyTail, 20000, cut, {.peel_rounds = rounds});
    }
  }
}

TEST(TagcDevice, OtherStepsBeginElsewhere) {
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 9000, 3);
  for (const uint64_t step : {uint64_t{0}, uint64_t{1}, uint64_t{5}, uint64_t{1} << 40}) {
    expect_as_on_cpu(options_of(10, .9), piece, std::vector<float>(9000), {17, 3}, {1, step});
  }
}

TEST(TagcDevice, AMillionElements) {
  expect_as_on_cpu(options_of(10, .9875), Data::kHeavyTail, (1 << 20) + 1, {32, 3});
  expect_as_on_cpu(options_of(2, .8), Data::kFewDistinct, (1 << 20) - 1, {32, 3});
}

// The most rows that shared memory has room for, whose numbers have 16 bits; and one row more.
TEST(TagcDevice, TablesInScratchMemory) {
  constexpr TagcLimits kLimits = {.block_elements = 64};
  for (const int64_t num_elements : {64 * 65536, 64 * 65536 + 1}) {
    const bool fit = kernels::tables_fit_shared(TagcSettings(options_of(1, .999), kLimits).shape(num_elements));
    ASSERT_EQ(fit, num_elements == 64 * 65536);
    const std::vector<float> residual(num_elements);
    const std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 5);
    expect_as_on_cpu(options_of(1, .999), piece, residual, {8, 2}, kContext, kLimits);
  }
}

TEST(TagcDevice, EqualsThePlainReference) {
  for (const int64_t num_elements : {1, 65, 30001}) {
    const Options options = options_of(10, .9);
    const std::vector<float> piece = make_piece(Data::kFewDistinct, num_elements, 21);
    std::vector<float> residual(num_elements);
    const Encoded encoded = encode_on_device(options, piece, residual, kContext, {33, 3});
    const reference::TwoTierResult expected =
        reference::encode_two_tier({options.ratio, options.sparsity, 0, TagcLimits().peel_rounds, kContext.unit_hash,
                                    kContext.step, "fp32", kContext.sender},
                                   piece, residual);
    EXPECT_EQ(encoded.packet, expected.packet);
    EXPECT_EQ(bits_of(encoded.residual), bits_of(residual));
  }
}

TEST(TagcDevice, UnalignedPiecesAndResiduals) {
  const Options options = options_of(4, .9);
  std::vector<float> piece = make_piece(Data::kHeavyTail, 3000, 4);
  std::vector<float> residual(2999);
  Memory expected(TagcCodec(options).packet_bytes(2999));
  TagcCodec(options).encode(buffer_of(piece).slice(1, 2999), buffer_of(residual), expected.buffer(), kContext, {});
  const TagcDevice codec(options);
  Memory packet(codec.packet_bytes(2999));
  Memory scratch(codec.encode_scratch_bytes(2999));
  std::vector<float> residual_on_device(2999);
  const kernels::DeviceContext context = device_context(kContext);
  kernels::DeviceCounts counts;
  EmulatedDevice device(31, 2, 3);
  kernels::emulated::run_passes(
      device, codec.encode_job({buffer_of(piece).slice(1, 2999), buffer_of(residual_on_device), packet.buffer(),
                                read_from(context, kContext), &counts, scratch.buffer()}));
  EXPECT_EQ(packet.copy(), expected.copy());
  EXPECT_EQ(bits_of(residual_on_device), bits_of(residual));
}

// All that the sample meets is large, and less than what is to be kept.
TEST(TagcDevice, ASampleThatMisleads) {
  const int64_t num_elements = 16 * 1250;
  const int64_t num_runs = 1250 / 16;
  for (const double sparsity : {.9, .5, 0.0}) {
    std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 23);
    for (int64_t run = 0; run < num_runs; ++run) {
      const auto jitter = static_cast<int64_t>(kernels::mix(run) % (1250 / num_runs));
      const int64_t first = 16 * (run * (1250 / num_runs) + jitter);
      std::fill_n(piece.begin() + first, 16, 1e6F);
    }
    expect_as_on_cpu(options_of(2, sparsity), piece, std::vector<float>(num_elements), {33, 3});
  }
}

// As if they had been widened first.
TEST(TagcDevice, PiecesOf16Bits) {
  const Options options = options_of(4, .9);
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    for (const int64_t offset : {0, 1}) {  // whether four can be loaded at once
      const int64_t num_elements = 5001;
      const std::vector<float> values = make_piece(Data::kHeavyTail, num_elements + offset, 31);
      std::vector<uint16_t> rounded(values.size());
      const Buffer in_16_bits = {rounded.data(), static_cast<int64_t>(rounded.size()), dtype};
      convert(buffer_of(values), in_16_bits);
      const ConstBuffer piece = in_16_bits.slice(offset, num_elements);
      std::vector<float> widened(num_elements);
      convert(piece, buffer_of(widened));
      const std::vector<float> residual = make_piece(Data::kHeavyTail, num_elements, 32);
      const Encoded expected = encode_on_device(options, widened, residual, kContext, {32, 2});
      const Encoded encoded = encode_on_device(options, piece, residual, kContext, {32, 2});
      EXPECT_EQ(encoded.packet, expected.packet);
      EXPECT_EQ(bits_of(encoded.residual), bits_of(expected.residual));
    }
  }
}

TEST(TagcDevice, NonFiniteBlocks) {
  const int64_t num_elements = 5000;
  std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 6);
  std::vector<float> residual = make_piece(Data::kHeavyTail, num_elements, 7);
  piece[300] = kNan;
  piece[301] = -kInfinity;
  piece[1024] = kInfinity;
  piece[num_elements - 1] = -kNan;
  piece[2047] = residual[2047] = std::numeric_limits<float>::max();
  for (const Cut cut : kCuts) {
    expect_as_on_cpu(options_of(4, .9), piece, residual, cut, kContext, kBlocksOf256);
    expect_as_on_cpu(options_of(10, .9875), std::vector<float>(4097, kNan), std::vector<float>(4097, 1.0F), cut);
  }
}

TEST(TagcDevice, AddsSeveralPacketsInOrder) {
  const int64_t num_elements = 10007;
  const Options options = options_of(10, .9875);
  std::vector<uint8_t> packets;
  for (int p = 0; p < 3; ++p) {
    std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 20 + p);
    if (p == 1) {
      piece[77] = kNan;
    }
    const Encoded encoded =
        encode_on_device(options, piece, std::vector<float>(num_elements), kContext.of_packet(p), {32, 4});
    packets.insert(packets.end(), encoded.packet.begin(), encoded.packet.end());
  }
  std::vector<float> expected(num_elements, 100.0F);
  TagcCodec cpu(options);
  cpu.decode_sum({packets.data(), static_cast<int64_t>(packets.size()), DataType::kByte}, 3, buffer_of(expected),
                 kContext, {});
  for (const Cut cut : kCuts) {
    std::vector<float> out(num_elements, 100.0F);
    EXPECT_EQ(decode_on_device(options, packets, 3, out, kContext, cut).reported, 0U);
    EXPECT_EQ(bits_of(out), bits_of(expected));
  }
}

// However the sketch is cut into stripes.
TEST(TagcDevice, StripesOfTheSketchFitTheirCache) {
  using InsertValues = kernels::emulated::InsertValues<true, kernels::emulated::Float32Cells>;
  const kernels::TagcShape shape = TagcSettings(options_of(4, .9), kBlocksOf256).shape(5000);
  ASSERT_EQ(shape.num_rows, 5);
  EXPECT_EQ(InsertValues::words_of_stripe(shape, 4 * 256 * 5), 8);
  EXPECT_EQ(InsertValues::words_of_stripe(shape, 4 * 256 * 5 - 1), 4);
  EXPECT_EQ(InsertValues::words_of_stripe(shape, 1), 1);
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 5000, 8);
  const Encoded whole =
      encode_on_device(options_of(4, .9), piece, std::vector<float>(5000), kContext, {32, 3}, kBlocksOf256);
  const TagcDevice codec(options_of(4, .9), kBlocksOf256);
  std::vector<uint8_t> first;
  for (const int64_t stripe_words : {1, 2, 8}) {  // inserts once more, elsewhere
    Memory packet(static_cast<int64_t>(whole.packet.size()));
    std::copy(whole.packet.begin(), whole.packet.end(), packet.data());
    Memory scratch(codec.encode_scratch_bytes(5000));
    std::vector<float> residual(5000, 1.0F);
    const kernels::DeviceContext context = device_context(kContext);
    kernels::DeviceCounts counts;
    kernels::TagcEncodeJob job = codec.encode_job({buffer_of(piece), buffer_of(residual), packet.buffer(),
                                                   read_from(context, kContext), &counts, scratch.buffer()});
    for (int64_t block = 0; block < shape.num_blocks; ++block) {
      kernels::emulated::RowTable<true>(job.rows).set(block, {0, 2, 4});
    }
    EmulatedDevice device(32, 3, 1);
    device.run(InsertValues{job, stripe_words}, 4, 0);
    EXPECT_EQ(counts.kept_elements, whole.counts.kept_elements);
    const auto zeros = static_cast<uint64_t>(std::count(residual.begin(), residual.end(), 0.0F));
    EXPECT_EQ(zeros, whole.counts.kept_elements);
    if (first.empty()) {
      first = packet.copy();
    }
    EXPECT_EQ(packet.copy(), first);
    EXPECT_NE(packet.copy(), whole.packet);
  }
}

// As if each had been decoded alone into zeros.
TEST(TagcDevice, EachPacketToItsPlace) {
  for (const int64_t num_elements : {1, 1025, 10007}) {
    const Options options = options_of(4, .9);
    const TagcDevice codec(options);
    std::vector<uint8_t> packets;
    std::vector<float> expected;
    for (int p = 0; p < 3; ++p) {
      std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 20 + p);
      piece[0] = p == 1 ? kNan : piece[0];
      const Encoded encoded =
          encode_on_device(options, piece, std::vector<float>(num_elements), kContext.of_packet(p), {32, 4});
      std::vector<float> alone(num_elements);
      decode_on_device(options, encoded.packet, 1, alone, kContext.of_packet(p), {32, 2});
      packets.insert(packets.end(), encoded.packet.begin(), encoded.packet.end());
      expected.insert(expected.end(), alone.begin(), alone.end());
    }
    Memory aligned(static_cast<int64_t>(packets.size()));
    std::copy(packets.begin(), packets.end(), aligned.data());
    for (const Cut cut : kCuts) {
      std::vector<float> out(3 * num_elements, 5.0F);
      Memory scratch(codec.decode_scratch_bytes({num_elements, 3, /*to_places=*/true}));
      const kernels::DeviceContext context = device_context(kContext);
      kernels::DeviceFault fault;
      EmulatedDevice device(cut.num_threads, cut.max_groups, 4, cut.threads);
      kernels::emulated::run_passes(device, codec.decode_job({aligned.buffer(), 3, buffer_of(out), /*to_places=*/true,
                                                              read_from(context, kContext), &fault, scratch.buffer()}));
      EXPECT_TRUE(scratch.ends_intact());
      EXPECT_EQ(fault.code, kernels::DeviceFault::kNone);
      EXPECT_EQ(device.num_passes(), 2);
      EXPECT_EQ(bits_of(out), bits_of(expected));
    }
  }
}

// The order in which threads and groups happen to run changes nothing.
TEST(TagcDevice, AnyOrderOfThreadsGivesTheSamePacket) {
  const Options options = options_of(4, .8);
  const std::vector<float> piece = make_piece(Data::kFewDistinct, 6000, 9);
  const TagcDevice codec(options);
  std::set<std::vector<uint8_t>> packets;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Memory packet(codec.packet_bytes(6000));
    Memory scratch(codec.encode_scratch_bytes(6000));
    std::vector<float> residual(6000);
    const kernels::DeviceContext context = device_context(kContext);
    kernels::DeviceCounts counts;
    EmulatedDevice device(19, 4, seed);
    kernels::emulated::run_passes(device, codec.encode_job({buffer_of(piece), buffer_of(residual), packet.buffer(),
                                                            read_from(context, kContext), &counts, scratch.buffer()}));
    packets.insert(packet.copy());
  }
  EXPECT_EQ(packets.size(), 1U);
}

// For ThreadSanitizer: ties, blocks that are flagged, and keys that are held back.
TEST(TagcDevice, ThreadsAtOnce) {
  std::vector<float> piece = make_piece(Data::kFewDistinct, 1500, 17);
  piece[700] = kNan;
  for (const int64_t num_threads : {1, 3}) {
    const Cut cut = {num_threads, 2, EmulatedDevice::Threads::kAtOnce};
    expect_as_on_cpu(options_of(4, .8), piece, std::vector<float>(1500), cut);
    expect_as_on_cpu(options_of(10, .5), piece, std::vector<float>(1500), cut);
  }
}

TEST(TagcDevice, SequencesDependOnShapesAlone) {
  const auto passes_of = [](Data data) {
    const TagcDevice codec(options_of(10, .9875));
    Memory packet(codec.packet_bytes(4096));
    Memory scratch(codec.encode_scratch_bytes(4096));
    std::vector<float> residual(4096);
    const std::vector<float> piece = make_piece(data, 4096, 1);
    const kernels::DeviceContext context = device_context(kContext);
    kernels::DeviceCounts counts;
    EmulatedDevice device(16, 2, 1);
    kernels::emulated::run_passes(device, codec.encode_job({buffer_of(piece), buffer_of(residual), packet.buffer(),
                                                            read_from(context, kContext), &counts, scratch.buffer()}));
    return device.num_passes();
  };
  for (const Data data : all_data()) {
    EXPECT_EQ(passes_of(data), 11) << to_string(data);
  }
}

}  // namespace
}  // namespace isthmus
