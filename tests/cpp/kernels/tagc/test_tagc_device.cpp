// Codec tagc's passes for a device, on emulated groups, where other limits than a release's show what small data
// cannot: block sizes, rounds of peeling, tables that do not fit. All else is the subject of tests/cpp/gpu/device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <variant>
#include <vector>

#include "isthmus/error.h"
#include "kernels/checksum/cpu.h"
#include "kernels/tagc/device.h"
#include "kernels/tagc/host.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/on_device.h"
#include "tests/cpp/support/packets.h"

// What is called by itself.
#include "kernels/tagc/insert_passes.h"

namespace isthmus::test {
namespace {

constexpr TagcLimits kBlocksOf256 = {.block_elements = 256};
constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7, .sender = 5};

Options options_of(double ratio, double sparsity) {
  Options options;
  options.ratio = ratio;
  options.sparsity = sparsity;
  return options;
}

struct Encoded {
  std::vector<uint8_t> packet;
  std::vector<float> residual;
  kernels::DeviceCounts counts;
};

using DeviceCodec = PassesCodec<TagcMaker>;

Encoded encode_on_device(const Options& options, ConstBuffer piece, const std::vector<float>& residual, Cut cut,
                         TagcLimits limits = {}) {
  Encoded encoded = {{}, residual, {}};
  CutLauncher launcher(cut);
  DeviceCodec codec(TagcMaker(options, limits), {launcher, &encoded.counts});
  Memory packet(codec.packet_bytes(piece.num_elements));
  const PieceSet set = PieceSet::of_one(piece, buffer_of(encoded.residual), packet.buffer());
  Memory scratch(codec.encode_scratch_bytes(set));
  const kernels::DeviceContext context = device_context(kContext);
  codec.encode_pieces(set, read_from(context, kContext), {{}, scratch.buffer()});
  EXPECT_TRUE(packet.ends_intact() && scratch.ends_intact());
  encoded.packet = packet.copy();
  return encoded;
}

// Adds the packets to `out`.
kernels::DeviceFault decode_on_device(const Options& options, const std::vector<uint8_t>& packets, int num_packets,
                                      std::vector<float>& out, Cut cut, PacketContext packet_context = kContext,
                                      TagcLimits limits = {}) {
  CutLauncher launcher(cut);
  DeviceCodec codec(TagcMaker(options, limits), {launcher, nullptr});
  std::vector<uint8_t> with_own = packets;
  with_own.resize(packets.size() / static_cast<size_t>(num_packets) * static_cast<size_t>(num_packets + 1));
  Memory aligned(with_own);
  const ShardSum sum = {.own = buffer_of(out),
                        .packets = aligned.buffer(),
                        .num_nodes = num_packets + 1,
                        .node = num_packets,
                        .shard = buffer_of(out)};
  Memory scratch(codec.decode_scratch_bytes(sum));
  const kernels::DeviceContext context = device_context(packet_context);
  codec.decode_shard(sum, read_from(context, packet_context), {{}, scratch.buffer()});
  EXPECT_TRUE(scratch.ends_intact());
  EXPECT_TRUE(aligned.copy() == with_own);
  return launcher.fault;
}

// One encoding and its decoding, on the device as on the CPU.
void expect_as_on_cpu(const Options& options, const std::vector<float>& piece, const std::vector<float>& residual,
                      Cut cut, TagcLimits limits = {}) {
  SCOPED_TRACE(testing::Message() << piece.size() << " elements, ratio " << options.ratio << ", sparsity "
                                  << options.sparsity << ", blocks " << limits.block_elements << ", " << cut.num_threads
                                  << " threads, " << cut.max_groups << " groups");
  TagcCodec cpu(options, limits);
  Packet packet = new_packet(cpu, static_cast<int64_t>(piece.size()));
  std::vector<float> expected_residual = residual;
  const CodecCounts expected = encode(cpu, piece, expected_residual, packet, kContext);
  const Encoded encoded = encode_on_device(options, buffer_of(piece), residual, cut, limits);
  ASSERT_EQ(encoded.packet, packet.copy());
  ASSERT_EQ(bits_of(encoded.residual), bits_of(expected_residual));
  const kernels::DeviceCounts& counts = encoded.counts;
  EXPECT_EQ(static_cast<int64_t>(counts.kept_elements), expected.kept_elements);
  EXPECT_EQ(static_cast<int64_t>(counts.chosen_elements - counts.kept_elements), expected.held_back_elements);
  EXPECT_EQ(static_cast<int64_t>(counts.non_finite_blocks), expected.non_finite_blocks);

  std::vector<float> expected_out(piece.size(), .125F);
  std::vector<float> out = expected_out;
  cpu.decode_sum(packet.buffer(), 1, buffer_of(expected_out), kContext, {});
  EXPECT_EQ(decode_on_device(options, encoded.packet, 1, out, cut, kContext, limits).code, kernels::DeviceFault::kNone);
  ASSERT_EQ(bits_of(out), bits_of(expected_out));
}

void expect_as_on_cpu(const Options& options, Data data, int64_t num_elements, Cut cut, TagcLimits limits = {}) {
  SCOPED_TRACE(to_string(data));
  const std::vector<float> piece = make_piece(data, num_elements, 11);
  expect_as_on_cpu(options, piece, make_piece(Data::kHeavyTail, num_elements, 12), cut, limits);
  expect_as_on_cpu(options, piece, std::vector<float>(num_elements), cut, limits);
}

TEST(TagcDevice, EveryBlockSize) {
  const Options options = options_of(4, .9);
  for (int64_t block_elements = 64; block_elements <= 4096; block_elements *= 4) {
    const TagcLimits limits = {.block_elements = block_elements};
    for (const int64_t num_elements : {1, 4095, 4096, 4097, 12289}) {
      expect_as_on_cpu(options, Data::kHeavyTail, num_elements, {20, 3}, limits);
    }
  }
  std::vector<float> piece = make_piece(Data::kHeavyTail, 5000, 6);
  piece[300] = piece[4999] = kNan;
  piece[1024] = -kInfinity;
  expect_as_on_cpu(options, piece, std::vector<float>(5000), {33, 5}, kBlocksOf256);
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

// Rows whose tables, with what else a pass has there, just exceed the shared memory that a driver gives unasked; the
// most rows that shared memory has room for, and one row more.
TEST(TagcDevice, TablesInSharedAndInScratchMemory) {
  constexpr TagcLimits kLimits = {.block_elements = 64};
  for (const int64_t num_rows : {18337, 24576, 40960, 40961}) {
    const int64_t num_elements = 64 * num_rows;
    const bool fit = kernels::tables_fit_shared(TagcSettings(options_of(1, .999), kLimits).shape(num_elements));
    ASSERT_EQ(fit, num_rows <= 40960);
    const std::vector<float> residual(num_elements);
    const std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 5);
    expect_as_on_cpu(options_of(1, .999), piece, residual, {8, 2}, kLimits);
  }
}

// All that the sample meets is large, and less than what is to be kept.
TEST(TagcDevice, ASampleThatMisleads) {
  const int64_t num_elements = 16 * 1250;
  const int64_t num_runs = 1250 / 16;
  for (const double sparsity : {.9, .5, 0.0}) {
    std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 23);
    for (int64_t run = 0; run < num_runs; ++run) {
      const auto jitter = static_cast<int64_t>((kernels::mix(run) >> 32) * (1250 / num_runs) >> 32);
      const int64_t first = 16 * (run * (1250 / num_runs) + jitter);
      std::fill_n(piece.begin() + first, 16, 1e6F);
    }
    expect_as_on_cpu(options_of(2, sparsity), piece, std::vector<float>(num_elements), {33, 3});
  }
}

// Runs nothing.
struct JobKeeper final : DeviceLauncher {
  kernels::AnyJob job;
  void run(const kernels::AnyJob& given, Stream /*stream*/) override { job = given; }
};

TEST(TagcDevice, StripesOfTheSketchFitTheirCache) {
  using InsertValues = kernels::emulated::InsertValues<true>;
  const kernels::TagcShape shape = TagcSettings(options_of(4, .9), kBlocksOf256).shape(5000);
  ASSERT_EQ(shape.num_rows, 5);
  EXPECT_EQ(InsertValues::words_of_stripe(shape, 4 * 256 * 5), 8);
  EXPECT_EQ(InsertValues::words_of_stripe(shape, 4 * 256 * 5 - 1), 4);
  EXPECT_EQ(InsertValues::words_of_stripe(shape, 1), 1);
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 5000, 8);
  const Encoded whole =
      encode_on_device(options_of(4, .9), buffer_of(piece), std::vector<float>(5000), {32, 3}, kBlocksOf256);
  std::vector<uint8_t> first;
  for (const int64_t stripe_words : {1, 2, 8}) {  // inserts once more, elsewhere
    Memory packet(whole.packet);
    std::vector<float> residual(5000, 1.0F);
    const kernels::DeviceContext context = device_context(kContext);
    kernels::DeviceCounts counts;
    JobKeeper keeper;
    DeviceCodec codec(TagcMaker(options_of(4, .9), kBlocksOf256), {keeper, &counts});
    const PieceSet set = PieceSet::of_one(buffer_of(piece), buffer_of(residual), packet.buffer());
    Memory scratch(codec.encode_scratch_bytes(set));
    codec.encode_pieces(set, read_from(context, kContext), {{}, scratch.buffer()});
    const auto& job = std::get<kernels::TagcEncodeJob>(keeper.job);
    for (int64_t block = 0; block < shape.num_blocks; ++block) {
      kernels::emulated::RowTable<true>(job.rows).set(block, {{0, 2, 4}, 0});
    }
    EmulatedDevice device(32, 3, 1);
    device.run(InsertValues{job, stripe_words}, 4);
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

// A packet that is damaged in some tests.
class TagcDeviceCorruption : public testing::Test {
 protected:
  static constexpr int64_t kElements = 3001;

  TagcDeviceCorruption() {
    std::vector<float> piece = make_piece(Data::kHeavyTail, kElements, 14);
    piece[200] = kNan;
    packet_ = encode_on_device(options_, buffer_of(piece), std::vector<float>(kElements), {32, 2}).packet;
  }
  // What the codec of the CPU says of it.
  std::string message_of(const std::vector<uint8_t>& packet) {
    Memory aligned(packet);
    std::vector<float> out(kElements);
    return error_of<PacketError>(
        [&] { TagcCodec(options_).decode_sum(aligned.buffer(), 1, buffer_of(out), kContext, {}); });
  }
  // Gives a damaged packet the checksum that fits it.
  static void seal(std::vector<uint8_t>& packet) {
    Checksum checksum;
    checksum.add(packet.data() + sizeof(PacketHeader), static_cast<int64_t>(packet.size() - sizeof(PacketHeader)));
    const uint64_t value = checksum.value();
    std::memcpy(packet.data() + offsetof(PacketHeader, checksum), &value, sizeof(value));
  }

  const Options options_ = options_of(4, .9);
  std::vector<uint8_t> packet_;
};

// Behind a packet that is right, too: then none is added.
TEST_F(TagcDeviceCorruption, MadeUpPacketsAreNamedAsOnCpu) {
  const auto layout = tagc_layout(TagcSettings(options_).shape(kElements));
  const auto expect_fault = [&](kernels::FaultKind kind, auto damage) {
    std::vector<uint8_t> damaged = packet_;
    damage(damaged);
    seal(damaged);
    std::vector<uint8_t> both = packet_;
    both.insert(both.end(), damaged.begin(), damaged.end());
    PacketContext of_one_node = kContext;
    of_one_node.packets_of_sender = 2;
    for (const Cut cut : {Cut{32, 2}, Cut{16, 1}, Cut{64, 5}}) {
      std::vector<float> out(kElements, 5.0F);
      const kernels::DeviceFault fault = decode_on_device(options_, damaged, 1, out, cut);
      EXPECT_EQ(fault.kind(), kind);
      EXPECT_EQ(fault.packet(), 0);
      EXPECT_EQ(error_of<PacketError>([&] { throw_if_reported(fault); }), message_of(damaged));
      out.assign(kElements, 5.0F);
      const kernels::DeviceFault second = decode_on_device(options_, both, 2, out, cut, of_one_node);
      EXPECT_EQ(second.kind(), kind);
      EXPECT_EQ(second.packet(), 1);
      if (kind == kernels::FaultKind::kPadding) {  // found before anything is peeled
        EXPECT_EQ(out, std::vector<float>(kElements, 5.0F));
      }
    }
  };
  using kernels::FaultKind;
  expect_fault(FaultKind::kPadding, [&](auto& bytes) { bytes[63] = 1; });
  expect_fault(FaultKind::kPadding, [&](auto& bytes) { bytes[layout.index - 1] = 1; });
  expect_fault(FaultKind::kFlags, [&](auto& bytes) { bytes[layout.flags + 7] = 0x80; });
  expect_fault(FaultKind::kIndex, [&](auto& bytes) { bytes[layout.index + 3001 / 8] |= 0x80; });
  expect_fault(FaultKind::kEmptyBlock, [&](auto& bytes) {
    for (int64_t byte = 0; byte < 8; ++byte) {
      bytes[layout.index + 3 * 8 + byte] = 0;  // of the block that is flagged
    }
  });
  expect_fault(FaultKind::kDoesNotPeel, [&](auto& bytes) {
    for (int64_t byte = 8 * 8; byte < 46 * 8; ++byte) {
      bytes[layout.index + byte] = 0xff;
    }
  });
  expect_fault(FaultKind::kCellsLeft, [&](auto& bytes) { bytes[layout.sketch + 4 * 64 * 5 + 3] ^= 1; });
}

TEST(TagcDevice, RefusesTooManyElements) {
  EXPECT_THROW(TagcMaker(options_of(4, .9)).plan_encode(kernels::kMaxDeviceElements + 1, {}), Error);
}

}  // namespace
}  // namespace isthmus::test
