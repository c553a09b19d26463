// What decoding on a device refuses, in the words of the CPU codec.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "codec/checksum.h"
#include "codec/device_fault.h"
#include "codec/tagc/host.h"
#include "isthmus/error.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/codec/tagc/tagc_on_device.h"

namespace isthmus {
namespace {

class TagcDeviceCorruption : public testing::Test {
 protected:
  static constexpr int64_t kElements = 3001;
  static constexpr Cut kCut = {32, 2};

  TagcDeviceCorruption() : options_(options_of(4, .9)) {
    std::vector<float> piece = make_piece(Data::kHeavyTail, kElements, 14);
    piece[200] = std::numeric_limits<float>::quiet_NaN();
    packet_ = encode_on_device(options_, piece, std::vector<float>(kElements), kContext, kCut).packet;
  }
  kernels::DeviceFault fault_of(const std::vector<uint8_t>& packets, int num_packets = 1,
                                PacketContext context = kContext) {
    std::vector<float> out(kElements);
    return decode_on_device(options_, packets, num_packets, out, context, kCut);
  }
  // Message of the CPU codec.
  std::string cpu_message(const std::vector<uint8_t>& packet, PacketContext context = kContext) {
    Memory aligned(static_cast<int64_t>(packet.size()));
    std::copy(packet.begin(), packet.end(), aligned.data());
    std::vector<float> out(kElements);
    return message_of([&] { TagcCodec(options_).decode_sum(aligned.buffer(), 1, buffer_of(out), context, {}); });
  }
  template <typename Call>
  static std::string message_of(Call call) {
    try {
      call();
    } catch (const PacketError& error) {
      return error.what();
    }
    return "";
  }
  // Gives a damaged packet the checksum that fits it.
  static void seal(std::vector<uint8_t>& packet);

  Options options_;
  std::vector<uint8_t> packet_;
};

TEST_F(TagcDeviceCorruption, FlippedBitsAreFoundAndNamedAsOnCpu) {
  EXPECT_EQ(fault_of(packet_).code, kernels::DeviceFault::kNone);
  std::mt19937 random(3);
  for (int64_t trial = 0; trial < 48 * 8 + 300; ++trial) {
    // Every bit of the header, then some of the rest.
    const auto bit = static_cast<size_t>(trial < 48 * 8 ? trial : 48 * 8 + random() % (8 * packet_.size() - 48 * 8));
    std::vector<uint8_t> damaged = packet_;
    damaged[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    const kernels::DeviceFault fault = fault_of(damaged);
    const std::string message = message_of([&] { throw_if_reported(fault); });
    ASSERT_NE(message, "") << bit;
    ASSERT_EQ(message, cpu_message(damaged)) << bit;
  }
}

TEST_F(TagcDeviceCorruption, MadeUpPacketsAreNamedAsOnCpu) {
  const auto layout = tagc_layout(TagcSettings(options_).shape(kElements));
  const auto expect_fault = [&](kernels::FaultKind kind, auto damage) {
    std::vector<uint8_t> damaged = packet_;
    damage(damaged);
    seal(damaged);
    const kernels::DeviceFault fault = fault_of(damaged);
    EXPECT_EQ(fault.kind(), kind);
    EXPECT_EQ(fault.packet(), 0);
    EXPECT_EQ(message_of([&] { throw_if_reported(fault); }), cpu_message(damaged));
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

void TagcDeviceCorruption::seal(std::vector<uint8_t>& packet) {
  Checksum checksum;
  checksum.add(packet.data() + sizeof(PacketHeader), static_cast<int64_t>(packet.size() - sizeof(PacketHeader)));
  const uint64_t value = checksum.value();
  std::memcpy(packet.data() + offsetof(PacketHeader, checksum), &value, sizeof(value));
}

TEST_F(TagcDeviceCorruption, AnotherContextIsNamedAsOnCpu) {
  PacketContext other_step = kContext;
  ++other_step.step;
  const kernels::DeviceFault fault = fault_of(packet_, 1, other_step);
  EXPECT_EQ(message_of([&] { throw_if_reported(fault); }), cpu_message(packet_, other_step));
  EXPECT_NE(cpu_message(packet_, other_step).find("step 7 where 8"), std::string::npos);
}

TEST_F(TagcDeviceCorruption, NamesTheFirstPacketAndAddsNone) {
  PacketContext all_of_one = kContext;
  all_of_one.packets_of_sender = 3;
  std::vector<uint8_t> packets = packet_;
  packets.insert(packets.end(), packet_.begin(), packet_.end());
  packets.insert(packets.end(), packet_.begin(), packet_.end());
  packets[packet_.size() + 100] ^= 1;
  packets[2 * packet_.size() + 5] ^= 1;
  std::vector<float> out(kElements, 5.0F);
  const kernels::DeviceFault fault = decode_on_device(options_, packets, 3, out, all_of_one, kCut);
  EXPECT_EQ(fault.packet(), 1);
  EXPECT_EQ(fault.kind(), kernels::FaultKind::kChecksum);
  EXPECT_EQ(out, std::vector<float>(kElements, 5.0F));
}

TEST_F(TagcDeviceCorruption, AMadeUpPacketBehindAnotherIsNamedAndNoneIsAdded) {
  PacketContext all_of_one = kContext;
  all_of_one.packets_of_sender = 2;
  std::vector<uint8_t> made_up = packet_;
  made_up[63] = 1;
  seal(made_up);
  std::vector<uint8_t> packets = packet_;
  packets.insert(packets.end(), made_up.begin(), made_up.end());
  for (const Cut cut : {kCut, Cut{16, 1}, Cut{64, 5}}) {
    std::vector<float> out(kElements, 5.0F);
    const kernels::DeviceFault fault = decode_on_device(options_, packets, 2, out, all_of_one, cut);
    EXPECT_EQ(fault.packet(), 1);
    EXPECT_EQ(fault.kind(), kernels::FaultKind::kPadding);
    EXPECT_EQ(out, std::vector<float>(kElements, 5.0F));
  }
}

// The host's copy is complete when it says so, and the first one stays.
TEST_F(TagcDeviceCorruption, ThreadsAtOnceCopyFaultsToTheHost) {
  const TagcDevice codec(options_);
  kernels::DeviceFault mapped;
  for (const size_t damaged_byte : {packet_.size() - 1, size_t{5}}) {
    Memory packet(static_cast<int64_t>(packet_.size()));
    std::copy(packet_.begin(), packet_.end(), packet.data());
    packet.data()[damaged_byte] ^= 1;
    Memory scratch(codec.decode_scratch_bytes({kElements}));
    const kernels::DeviceContext context = device_context(kContext);
    kernels::DeviceFault fault;
    std::vector<float> out(kElements);
    kernels::TagcDecodeJob job = codec.decode_job({packet.buffer(), 1, buffer_of(out), /*to_places=*/false,
                                                   read_from(context, kContext), &fault, scratch.buffer()});
    job.mapped_fault = &mapped;
    EmulatedDevice device(3, 2, 1, EmulatedDevice::Threads::kAtOnce);
    kernels::emulated::run_passes(device, job);
    EXPECT_EQ(fault.reported, 1U);
    EXPECT_EQ(mapped.reported, 1U);
    EXPECT_EQ(mapped.kind(), kernels::FaultKind::kChecksum);
    EXPECT_NE(message_of([&] { throw_if_reported(mapped); }), "");
  }
}

TEST_F(TagcDeviceCorruption, NothingIsDecodedAfterAFault) {
  const TagcDevice codec(options_);
  Memory packet(static_cast<int64_t>(packet_.size()));
  std::copy(packet_.begin(), packet_.end(), packet.data());
  Memory scratch(codec.decode_scratch_bytes({kElements}));
  const kernels::DeviceContext context = device_context(kContext);
  kernels::DeviceFault fault;
  fault.code = kernels::DeviceFault::code_of(2, kernels::FaultKind::kIndex);
  fault.reported = 1;
  std::vector<float> out(kElements);
  EmulatedDevice device(32, 2, 1);
  kernels::emulated::run_passes(device, codec.decode_job({packet.buffer(), 1, buffer_of(out), /*to_places=*/false,
                                                          read_from(context, kContext), &fault, scratch.buffer()}));
  EXPECT_EQ(out, std::vector<float>(kElements));
  EXPECT_EQ(fault.packet(), 2);
}

TEST(TagcDevice, RejectsWrongBuffers) {
  const TagcDevice codec(options_of(4, .9));
  std::vector<float> piece(100);
  std::vector<float> residual(100);
  Memory packet(codec.packet_bytes(100));
  Memory scratch(codec.encode_scratch_bytes(100));
  const Buffer short_scratch = scratch.buffer().slice(0, codec.encode_scratch_bytes(100) - 1);
  EXPECT_THROW(codec.encode_job({buffer_of(piece), buffer_of(residual), packet.buffer(), {}, nullptr, short_scratch}),
               Error);
  residual.resize(99);
  EXPECT_THROW(
      codec.encode_job({buffer_of(piece), buffer_of(residual), packet.buffer(), {}, nullptr, scratch.buffer()}), Error);
  EXPECT_THROW(codec.encode_scratch_bytes(kernels::kMaxDeviceElements + 1), Error);
}

}  // namespace
}  // namespace isthmus
