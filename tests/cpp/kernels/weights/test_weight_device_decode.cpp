// Weight differences that a device decodes, on emulated groups: replicas bit for bit, and faults that the host sees.
// Usual weights of all sizes are the subject of tests/cpp/gpu/device/weights.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "codec/device_jobs.h"
#include "isthmus/error.h"
#include "tests/cpp/kernels/weights/weights_on_device.h"
#include "tests/cpp/support/error_of.h"

namespace isthmus::test {
namespace {

struct Decoded {
  std::vector<uint8_t> replica;
  std::string fault;  // empty: all was decoded
};

Decoded decode_on_device(const Rail& rail, int64_t node, Cut cut = kCut, const kernels::DeviceFault& fault = {}) {
  const auto num_nodes = static_cast<int64_t>(rail.now.size());
  const Array& own_shard = rail.now[node % num_nodes];
  const ConstBuffer shard = own_shard.view();
  Memory headers(rail.received_headers());
  Memory packets(rail.received_packets());
  Memory own(bytes_of({own_shard}));
  Memory replica(bytes_of(rail.before));
  CutLauncher launcher(cut);
  launcher.fault = fault;
  const auto coder = make_weight_coder_of_gpu(launcher);
  Memory scratch(coder->decode_scratch_bytes(shard, num_nodes));
  coder->decode({.headers = headers.buffer(),
                 .num_nodes = num_nodes,
                 .node = node,
                 .packets = packets.buffer(),
                 .shard = {own.data(), shard.num_elements, shard.dtype},
                 .replica = {replica.data(), num_nodes * shard.num_elements, shard.dtype}},
                {{}, scratch.buffer()});
  EXPECT_TRUE(headers.ends_intact() && packets.ends_intact() && own.ends_intact() && replica.ends_intact() &&
              scratch.ends_intact());
  EXPECT_TRUE(headers.copy() == rail.received_headers() && packets.copy() == rail.received_packets());
  return {replica.copy(), error_of<PacketError>([&] { throw_if_any_reported(launcher.fault); })};
}

void expect_exact(const Rail& rail, Cut cut = kCut) {
  for (int64_t node = 0; node < static_cast<int64_t>(rail.now.size()); ++node) {
    const Decoded decoded = decode_on_device(rail, node, cut);
    ASSERT_EQ(decoded.fault, "");
    ASSERT_TRUE(decoded.replica == bytes_of(rail.now)) << "at node " << node;
  }
}
// At node 0, where node 1's shard alone should have changed: nothing is left of what it was.
void expect_nan(const Rail& rail, const Decoded& decoded) {
  std::vector<uint8_t> expected = bytes_of(rail.now);
  std::fill_n(expected.begin() + rail.now[0].view().bytes(), rail.now[1].view().bytes(), 0xff);
  EXPECT_TRUE(decoded.replica == expected);
}
void expect_refused(const Rail& rail, const std::string& words) {
  const Decoded decoded = decode_on_device(rail, 0);
  EXPECT_NE(decoded.fault.find("corrupt packet of weights from node 1: " + words), std::string::npos) << decoded.fault;
  expect_nan(rail, decoded);
}

TEST(WeightDecodeOnDevice, AnyPatternFromAnyOther) {
  for (const DataType dtype : kCodedTypes) {
    const Array before = all_patterns(dtype);
    const Array other = random_bits(before.view().num_elements, dtype, 2);
    SCOPED_TRACE(to_string(dtype));
    expect_exact({{before, before}, {all_patterns(dtype, 2), other}}, {48, 2});
  }
  const int64_t bytes = 2 * kWeightBlockElements + 99;
  const Array before = random_bits(bytes, DataType::kByte, 1);
  expect_exact({{before, before}, {random_bits(bytes, DataType::kByte, 2), before}}, {48, 2});
}

// What this rank's row holds is nobody's packet.
TEST(WeightDecodeOnDevice, TheOwnRowIsNotRead) {
  Rail rail = rail_of(5001, DataType::kBFloat16, 1e-3);
  rail.packets[1].assign(rail.packets[1].size(), 0xff);
  const Decoded decoded = decode_on_device(rail, 1);
  EXPECT_EQ(decoded.fault, "");
  EXPECT_TRUE(decoded.replica == bytes_of(rail.now));
}

// As isthmus.weights decodes one tensor.
TEST(WeightDecodeOnDevice, AllRowsAreOthers) {
  for (const DataType dtype : {DataType::kBFloat16, DataType::kByte}) {
    const Array before = random_bits(kWeightBlockElements + 77, dtype, 1);
    const Array now = random_bits(kWeightBlockElements + 77, dtype, 2);
    const Rail rail({before, before}, {now, before});
    for (const Rail& each : {rail, Rail({before}, {now})}) {
      const Decoded decoded = decode_on_device(each, static_cast<int64_t>(each.now.size()));
      EXPECT_EQ(decoded.fault, "");
      EXPECT_TRUE(decoded.replica == bytes_of(each.now)) << to_string(dtype) << ", " << each.now.size();
    }
  }
}

TEST(WeightDecodeOnDevice, DamagedPackets) {
  for (size_t byte : {0, 5, 100, 300}) {
    Rail rail = rail_of(2000, DataType::kBFloat16, 1e-3);
    rail.packets[1][byte] ^= 4;
    expect_refused(rail, "its bytes have the checksum");
  }
  Rail longer = rail_of(2000, DataType::kBFloat16, 1e-3);
  longer.packets[1].resize(longer.packets[1].size() + 8);
  longer.seal(1);
  expect_refused(longer, std::to_string(longer.packets[1].size()) + " bytes are not those of its blocks");
  Rail no_directory = rail_of(4 * kWeightBlockElements, DataType::kBFloat16, 1e-3);
  no_directory.packets[1].resize(8);
  no_directory.seal(1);
  expect_refused(no_directory, "block 0 does not decode");
  Rail too_long = rail_of(2 * kWeightBlockElements, DataType::kBFloat16, 1e-3);
  too_long.packets[1][7] = 0xff;  // the second block's bytes
  too_long.seal(1);
  expect_refused(too_long, "block 1 does not decode");
}

TEST(WeightDecodeOnDevice, AfterAFaultAllIsRefused) {
  const Rail rail = rail_of(2000, DataType::kBFloat16, 1e-3);
  kernels::DeviceFault fault;
  fault.reported = 1;
  expect_nan(rail, decode_on_device(rail, 0, kCut, fault));
}

// Damage that only a look at each part of a block finds. The block is the example of docs/packet_format.md.
TEST(WeightDecodeOnDevice, BlocksThatNoEncoderMakes) {
  const Array before(std::vector<double>(40, .25), DataType::kBFloat16);
  Array now = before;
  now.buffer().as<uint16_t>()[3] += 1;
  now.buffer().as<uint16_t>()[20] = 0xc000;
  const Rail right({before, before}, {before, now});
  expect_exact(right);
  const auto expect_bad = [&](size_t place, std::vector<uint8_t> bytes) {
    Rail bad = right;
    std::copy(bytes.begin(), bytes.end(), bad.packets[1].begin() + static_cast<int64_t>(place));
    bad.seal(1);
    expect_refused(bad, "block 0 does not decode");
  };
  expect_bad(4, {0x3f});        // classes of eight octaves
  expect_bad(6, {0xf4, 0xdf});  // a gap that leaves the string
  expect_bad(6, {0x7f});        // a unary part behind the block's end
  expect_bad(11, {0x9f});       // bits behind the last
  Rail longer = right;
  longer.packets[1].resize(16);
  longer.packets[1][0] += 2;
  longer.seal(1);
  expect_refused(longer, "block 0 does not decode");
  longer.packets[1][0] -= 1;  // odd
  longer.seal(1);
  expect_refused(longer, "block 0 does not decode");
}

// Whatever the bytes are: the same verdict as on the CPU, and nothing outside of the memory is touched.
TEST(WeightDecodeOnDevice, GarbageWithRightChecksums) {
  std::mt19937 generator(5);
  int num_refused = 0;
  for (int round = 0; round < 120; ++round) {
    const DataType dtype = kCodedTypes[round % 3];
    const int64_t count = round % 2 == 0 ? 500 : kWeightBlockElements + 40;
    Rail rail = rail_of(count, dtype, 1e-3, 2);
    std::vector<uint8_t>& packet = rail.packets[1];
    const size_t first = round % 4 == 0 ? 0 : kernels::WeightShape{count, 1}.directory_bytes();  // the directory, too
    const int num_damages = round % 5 == 0 ? 200 : 1 + round % 3;
    for (int i = 0; i < num_damages; ++i) {
      packet[first + generator() % std::min<size_t>(packet.size() - first, round % 3 == 0 ? 60 : packet.size())] =
          static_cast<uint8_t>(generator());
    }
    rail.seal(1);
    const Decoded decoded = decode_on_device(rail, 0);
    Array expected = rail.before[1];
    bool is_refused = false;
    try {
      decode_into(expected.buffer(), packet);
    } catch (const PacketError&) {
      is_refused = true;
    }
    num_refused += is_refused ? 1 : 0;
    EXPECT_EQ(!decoded.fault.empty(), is_refused) << "round " << round << ": " << decoded.fault;
    if (is_refused) {
      expect_nan(rail, decoded);
    } else {
      EXPECT_TRUE(decoded.replica == bytes_of({rail.now[0], expected})) << "round " << round;
    }
  }
  EXPECT_GT(num_refused, 40);
}

}  // namespace
}  // namespace isthmus::test
