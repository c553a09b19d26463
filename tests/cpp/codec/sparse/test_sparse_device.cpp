// Codec sparse's passes for a device, on emulated groups, against the CPU codec: packets, residuals, counts and sums,
// bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "codec/device_fault.h"
#include "codec/sparse/device.h"
#include "isthmus/error.h"
#include "tests/cpp/codec/dropping_codecs_on_device.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/codec/sparse/sparse_packets.h"
#include "tests/cpp/support/on_device.h"

namespace isthmus {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const char* const kValueTypes[] = {"fp32", "bf16", "int8"};

constexpr Cut kCuts[] = {{1, 1}, {7, 3}, {32, 2}, {33, 5}, {256, 2}};

Encoded encode_on_device(const Options& options, ConstBuffer piece, const std::vector<float>& residual, Cut cut) {
  const auto run = [](EmulatedDevice& device, const kernels::SparseEncodeJob& job) {
    kernels::emulated::run_passes(device, job);
  };
  return encode_with(SparseDevice(options), run, piece, residual, kContext, cut);
}

kernels::DeviceFault decode_on_device(const Options& options, const std::vector<uint8_t>& packets, int num_packets,
                                      Buffer out, Cut cut, bool to_places = false) {
  const auto run = [](EmulatedDevice& device, const kernels::SparseDecodeJob& job) {
    kernels::emulated::run_passes(device, job);
  };
  return decode_with(SparseDevice(options), run, packets, num_packets, out, to_places, kContext, cut);
}

// One encoding and its decoding, on the device as on the CPU.
void expect_as_on_cpu(const Options& options, const std::vector<float>& piece, std::vector<float> residual, Cut cut) {
  SCOPED_TRACE(testing::Message() << piece.size() << " elements, sparsity " << options.sparsity << ", "
                                  << options.value_type << ", error feedback " << options.error_feedback << ", "
                                  << cut.num_threads << " threads, " << cut.max_groups << " groups");
  SparseCodec cpu(options);
  residual.resize(cpu.keeps_residual() ? residual.size() : 0);
  expect_same_as_cpu(
      cpu, piece, residual, kContext,
      [&](const auto& values, const auto& kept) { return encode_on_device(options, buffer_of(values), kept, cut); },
      [&](const auto& packet, auto& out) { return decode_on_device(options, packet, 1, buffer_of(out), cut); });
}

void expect_as_on_cpu(const Options& options, Data data, int64_t num_elements, Cut cut) {
  SCOPED_TRACE(to_string(data));
  expect_as_on_cpu(options, make_piece(data, num_elements, 11), make_piece(Data::kHeavyTail, num_elements, 12), cut);
  expect_as_on_cpu(options, make_piece(data, num_elements, 11), std::vector<float>(num_elements), cut);
}

TEST(SparseDevice, AllSizesAndCuts) {
  for (const Cut cut : kCuts) {
    for (const int64_t num_elements : {0, 1, 3, 4, 5, 255, 257, 1023, 1024, 1025, 3075}) {
      expect_as_on_cpu(sparse_options(.9875), Data::kHeavyTail, num_elements, cut);
      expect_as_on_cpu(sparse_options(.5, "int8"), Data::kHeavyTail, num_elements, cut);
    }
  }
}

TEST(SparseDevice, DifficultData) {
  for (const Data data : all_data()) {
    for (const char* value_type : kValueTypes) {
      expect_as_on_cpu(sparse_options(.95, value_type), data, 2051, {37, 3});
      expect_as_on_cpu(sparse_options(.95, value_type, "off"), data, 2051, {256, 1});
    }
    for (const double sparsity : {.9995, .76, .75, .3, 0.0}) {
      expect_as_on_cpu(sparse_options(sparsity), data, 1500, {64, 2});
    }
  }
}

TEST(SparseDevice, EqualsThePlainReference) {
  for (const char* value_type : kValueTypes) {
    const Options options = sparse_options(.9, value_type);
    const std::vector<float> piece = make_piece(Data::kFewDistinct, 3001, 21);
    std::vector<float> residual(3001);
    const Encoded encoded = encode_on_device(options, buffer_of(piece), residual, {33, 3});
    const reference::SparseResult expected = reference::encode_sparse(parameters_of(options), piece, residual);
    EXPECT_EQ(encoded.packet, expected.packet);
    EXPECT_EQ(bits_of(encoded.residual), bits_of(residual));
  }
}

TEST(SparseDevice, NonFiniteBlocks) {
  for (const double sparsity : {.9, .5}) {
    for (const char* value_type : kValueTypes) {
      std::vector<float> piece = make_piece(Data::kHeavyTail, 5000, 6);
      piece[1024] = kNan;
      piece[3071] = -kInfinity;
      piece[4999] = std::numeric_limits<float>::max();
      std::vector<float> residual = make_piece(Data::kHeavyTail, 5000, 7);
      residual[4999] = piece[4999];
      for (const Cut cut : {Cut{1, 1}, Cut{50, 2}}) {
        expect_as_on_cpu(sparse_options(sparsity, value_type), piece, residual, cut);
      }
    }
  }
}

// As if they had been widened first.
TEST(SparseDevice, PiecesOf16Bits) {
  const Options options = sparse_options(.9);
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    for (const int64_t offset : {0, 1}) {  // whether four can be loaded at once
      const int64_t num_elements = 2501;
      const std::vector<float> values = make_piece(Data::kHeavyTail, num_elements + offset, 9);
      std::vector<uint16_t> narrowed(values.size());
      std::vector<float> widened(values.size());
      convert(buffer_of(values), {narrowed.data(), num_elements + offset, dtype});
      convert(ConstBuffer{narrowed.data(), num_elements + offset, dtype}, buffer_of(widened));
      const std::vector<float> piece(widened.begin() + offset, widened.end());
      const std::vector<float> residual = make_piece(Data::kHeavyTail, num_elements, 10);
      const ConstBuffer on_device = {narrowed.data() + offset, num_elements, dtype};
      const Encoded encoded = encode_on_device(options, on_device, residual, {31, 2});
      SparseCodec cpu(options);
      Packet packet = new_packet(cpu, num_elements);
      std::vector<float> expected_residual = residual;
      encode(cpu, piece, expected_residual, packet);
      EXPECT_EQ(encoded.packet, packet.copy());
      EXPECT_EQ(bits_of(encoded.residual), bits_of(expected_residual));
    }
  }
}

TEST(SparseDevice, UnalignedPieces) {
  const Options options = sparse_options(.9);
  std::vector<float> piece = make_piece(Data::kHeavyTail, 2000, 4);
  const std::vector<float> shifted(piece.begin() + 1, piece.end());
  SparseCodec cpu(options);
  Packet packet = new_packet(cpu, 1999);
  std::vector<float> residual(1999);
  encode(cpu, shifted, residual, packet);
  const Encoded encoded = encode_on_device(options, buffer_of(piece).slice(1, 1999), std::vector<float>(1999), {31, 2});
  EXPECT_EQ(encoded.packet, packet.copy());
  EXPECT_EQ(bits_of(encoded.residual), bits_of(residual));
}

// Three packets one after another.
class SparsePackets : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kElements = 2600;

  SparsePackets() : options_(sparse_options(.9, GetParam())), cpu_(options_) {
    for (int p = 0; p < 3; ++p) {
      std::vector<float> piece = make_piece(Data::kHeavyTail, kElements, 30 + p);
      piece[1500] = p == 1 ? kNan : 1;
      std::vector<float> residual(kElements);
      Packet packet = new_packet(cpu_, kElements);
      encode(cpu_, piece, residual, packet, kContext.of_packet(p));
      const std::vector<uint8_t> bytes = packet.copy();
      packets_.insert(packets_.end(), bytes.begin(), bytes.end());
    }
  }

  Options options_;
  SparseCodec cpu_;
  std::vector<uint8_t> packets_;
};

TEST_P(SparsePackets, AreAddedInTheirOrder) {
  Memory memory(static_cast<int64_t>(packets_.size()));
  std::copy(packets_.begin(), packets_.end(), memory.data());
  std::vector<float> expected(kElements, 100.0F);
  cpu_.decode_sum(memory.buffer(), 3, buffer_of(expected), kContext, {});
  for (const Cut cut : kCuts) {
    std::vector<float> out(kElements, 100.0F);
    EXPECT_EQ(decode_on_device(options_, packets_, 3, buffer_of(out), cut).code, kernels::DeviceFault::kNone);
    EXPECT_EQ(bits_of(out), bits_of(expected));
  }
}

TEST_P(SparsePackets, GoToTheirPlaces) {
  Memory memory(static_cast<int64_t>(packets_.size()));
  std::copy(packets_.begin(), packets_.end(), memory.data());
  std::vector<float> expected(3 * kElements, 100.0F);
  cpu_.decode_each(memory.buffer(), 3, buffer_of(expected), kContext, {});
  for (const Cut cut : kCuts) {
    std::vector<float> out(3 * kElements, 100.0F);
    EXPECT_EQ(decode_on_device(options_, packets_, 3, buffer_of(out), cut, /*to_places=*/true).code,
              kernels::DeviceFault::kNone);
    EXPECT_EQ(bits_of(out), bits_of(expected));
  }
}

INSTANTIATE_TEST_SUITE_P(Values, SparsePackets, testing::ValuesIn(kValueTypes),
                         [](const auto& parameter) { return std::string(parameter.param); });

// Every thread is a CPU thread: for ThreadSanitizer.
TEST(SparseDevice, ThreadsAtOnce) {
  const Cut cut = {5, 2, EmulatedDevice::Threads::kAtOnce};
  expect_as_on_cpu(sparse_options(.9, "int8"), Data::kHeavyTail, 1100, cut);
  std::vector<float> piece = make_piece(Data::kHeavyTail, 2048, 3);
  piece[7] = kNan;
  expect_as_on_cpu(sparse_options(.9), piece, std::vector<float>(2048), cut);
}

// The second of two packets is damaged: the device finds what the CPU finds.
class SparseFaults : public testing::Test {
 protected:
  static constexpr int64_t kElements = 2 * 1024 + 100;
  static constexpr int64_t kCounts = 48;
  static constexpr int64_t kScales = kCounts + 16;  // 3 x 4, and padding
  static constexpr int64_t kOffsets = kScales + 8;  // 3 x 2, and padding

  SparseFaults() : cpu_(options_), first_(new_packet(cpu_, kElements)), second_(new_packet(cpu_, kElements)) {
    for (Packet* packet : {&first_, &second_}) {
      std::vector<float> piece = make_piece(Data::kHeavyTail, kElements, 14);
      piece[1024] = kNan;
      std::vector<float> residual(kElements);
      encode(cpu_, piece, residual, *packet, kContext.of_packet(packet == &second_ ? 1 : 0));
    }
  }

  static std::string message_of(const kernels::DeviceFault& fault) {
    try {
      throw_if_reported(fault);
    } catch (const PacketError& error) {
      return error.what();
    }
    return "";
  }
  std::string message_of_cpu() {
    try {
      decode(cpu_, second_, kElements, kContext.of_packet(1));
    } catch (const PacketError& error) {
      return error.what();
    }
    return "";
  }
  void expect_same_complaint(const char* what) {
    const std::string expected = message_of_cpu();
    EXPECT_NE(expected.find(what), std::string::npos) << expected;
    std::vector<uint8_t> packets = first_.copy();
    const std::vector<uint8_t> damaged = second_.copy();
    packets.insert(packets.end(), damaged.begin(), damaged.end());
    for (const Cut cut : {Cut{1, 1}, Cut{40, 3}}) {
      std::vector<float> out(3 * kElements);  // the sums in the middle
      const Buffer sums = buffer_of(out).slice(kElements, kElements);
      EXPECT_EQ(message_of(decode_on_device(options_, packets, 2, sums, cut)), expected);
      EXPECT_TRUE(std::all_of(out.begin(), out.begin() + kElements, [](float value) { return value == 0; }));
      EXPECT_TRUE(std::all_of(out.end() - kElements, out.end(), [](float value) { return value == 0; }));
    }
  }

  Options options_ = sparse_options(.9, "int8");
  SparseCodec cpu_;
  Packet first_;
  Packet second_;
};

TEST_F(SparseFaults, NoneInGoodPackets) { EXPECT_EQ(message_of_cpu(), ""); }

TEST_F(SparseFaults, Header) {
  second_.data()[16] += 1;
  expect_same_complaint("step 8 where 7");
}

TEST_F(SparseFaults, Checksum) {
  second_.data()[kOffsets] ^= 1;
  expect_same_complaint("checksum");
}

TEST_F(SparseFaults, Padding) {
  second_.data()[kScales - 1] = 1;
  reseal(second_);
  expect_same_complaint("its padding is not zero");
}

TEST_F(SparseFaults, Counts) {
  second_.data()[kCounts] += 1;
  reseal(second_);
  expect_same_complaint("a block's counts do not add up to what it keeps");
}

TEST_F(SparseFaults, Offsets) {
  second_.data()[kOffsets + 1] = second_.data()[kOffsets];
  reseal(second_);
  expect_same_complaint("a block's offsets do not ascend within it");
}

TEST_F(SparseFaults, OffsetsPastTheLastElement) {
  second_.data()[kOffsets + 2 * 102 + 9] = 255;
  reseal(second_);
  expect_same_complaint("a block's offsets do not ascend within it");
}

TEST_F(SparseFaults, FlaggedBlockThatHoldsSomething) {
  for (const int64_t byte : {kOffsets + 102, kScales + 2}) {
    second_.data()[byte] = 1;
    reseal(second_);
    expect_same_complaint("a flagged block holds values");
    second_.data()[byte] = 0;
  }
}

// After a fault nothing is decoded until somebody has seen it.
TEST_F(SparseFaults, AreSticky) {
  const SparseDevice codec(options_);
  const kernels::DeviceContext context = device_context(kContext);
  kernels::DeviceFault fault;
  fault.reported = 1;
  Memory scratch(codec.decode_scratch_bytes({kElements}));
  std::vector<float> out(kElements, 3.0F);
  EmulatedDevice device(8, 2, 2);
  kernels::emulated::run_passes(device, codec.decode_job({.packets = first_.buffer(),
                                                          .out = buffer_of(out),
                                                          .context = read_from(context, kContext),
                                                          .fault = &fault,
                                                          .scratch = scratch.buffer()}));
  EXPECT_EQ(out, std::vector<float>(kElements, 3.0F));
}

TEST(SparseDevice, RejectsWrongBuffers) {
  const SparseDevice codec(sparse_options(.9));
  std::vector<float> piece(100);
  std::vector<float> residual(100);
  Memory packet(codec.packet_bytes(100));
  Memory scratch(codec.encode_scratch_bytes(100));
  const auto job = [&](ConstBuffer given, Buffer given_residual, Buffer given_packet, Buffer given_scratch) {
    return codec.encode_job({given, given_residual, given_packet, {}, nullptr, given_scratch});
  };
  EXPECT_NO_THROW(job(buffer_of(piece), buffer_of(residual), packet.buffer(), scratch.buffer()));
  const ConstBuffer doubles = {piece.data(), 50, DataType::kFloat64};
  EXPECT_THROW(job(doubles, buffer_of(residual), packet.buffer(), scratch.buffer()), Error);
  EXPECT_THROW(job(buffer_of(piece), buffer_of(residual).slice(0, 99), packet.buffer(), scratch.buffer()), Error);
  EXPECT_THROW(job(buffer_of(piece), buffer_of(residual), packet.buffer().slice(0, 8), scratch.buffer()), Error);
  EXPECT_THROW(job(buffer_of(piece), buffer_of(residual), packet.buffer(), scratch.buffer().slice(0, 8)), Error);
}

}  // namespace
}  // namespace isthmus
