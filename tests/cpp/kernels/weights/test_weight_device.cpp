// Weight differences that a device encodes, on emulated groups: the packets of the CPU, byte for byte. Usual weights of
// all sizes are the subject of tests/cpp/gpu/device/weights.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "isthmus/error.h"
#include "tests/cpp/kernels/weights/weights_on_device.h"

namespace isthmus::test {
namespace {

struct Sent {
  WeightHeader header;
  std::vector<uint8_t> packet;  // and the memory behind it
};

// The old shard lies in memory as a part of a replica does: wherever its elements may.
Sent encode_on_device(const Array& before, const Array& now, Cut cut, Array* replica = nullptr, int64_t shift = 1) {
  const ConstBuffer shard = now.view();
  const int64_t offset = shift * element_bytes(shard.dtype);
  Memory old_memory(shard.bytes() + offset);
  std::copy_n(before.view().as<uint8_t>(), shard.bytes(), old_memory.data() + offset);
  Memory new_memory(bytes_of({now}));
  Memory sent(kWeightHeaderBytes + WeightPackets::most_bytes(shard));
  CutLauncher launcher(cut);
  const auto coder = make_weight_coder_of_gpu(launcher);
  Memory scratch(coder->encode_scratch_bytes(shard));
  coder->encode({.header = header_of_unit(now),
                 .before = {old_memory.data() + offset, shard.num_elements, shard.dtype},
                 .shard = {new_memory.data(), shard.num_elements, shard.dtype},
                 .replica = replica == nullptr ? ConstBuffer{} : replica->view(),
                 .sent = sent.buffer()},
                {{}, scratch.buffer()});
  EXPECT_TRUE(sent.ends_intact() && scratch.ends_intact() && old_memory.ends_intact() && new_memory.ends_intact());
  Sent result;
  std::memcpy(static_cast<void*>(&result.header), sent.data(), sizeof(result.header));
  const std::vector<uint8_t> all = sent.copy();
  result.packet.assign(all.begin() + kWeightHeaderBytes, all.end());
  return result;
}

void expect_as_on_cpu(const Array& before, const Array& now, Cut cut = kCut, int64_t shift = 1) {
  std::vector<uint8_t> expected = packet_of(before.view(), now.view());
  const WeightHeader header = sealed_header(before, now, 0);
  const Sent sent = encode_on_device(before, now, cut, nullptr, shift);
  ASSERT_EQ(sent.header.packet_bytes, expected.size());
  expected.resize(sent.packet.size(), 0xa5);  // what is left is not touched
  ASSERT_TRUE(sent.packet == expected);
  EXPECT_EQ(std::memcmp(&sent.header, &header, sizeof(header)), 0);
}

// Sizes at which coding just pays, or just does not.
TEST(WeightEncodeOnDevice, BlocksThatAreHardlyShorterCoded) {
  for (const DataType dtype : kCodedTypes) {
    int num_coded = 0;
    int num_whole = 0;
    for (int64_t count = 40; count < 400; count += 9) {
      for (const double learning_rate : {0.01, 0.1, 1.0}) {
        SCOPED_TRACE(testing::Message() << count << " of " << to_string(dtype) << " at " << learning_rate);
        const Array before(weights(count), dtype);
        const Array now(moved(weights(count), learning_rate), dtype);
        expect_as_on_cpu(before, now);
        ++(static_cast<int64_t>(packet_of(before.view(), now.view()).size()) < now.view().bytes() ? num_coded
                                                                                                  : num_whole);
      }
    }
    EXPECT_TRUE(num_coded > 10 && num_whole > 10) << num_coded << " and " << num_whole << " of " << to_string(dtype);
  }
}

TEST(WeightEncodeOnDevice, AnyPatternFromAnyOther) {
  for (const DataType dtype : kCodedTypes) {
    const Array before = all_patterns(dtype);
    const Array near = all_patterns(dtype, 2);
    SCOPED_TRACE(to_string(dtype));
    EXPECT_LT(packet_of(before.view(), near.view()).size(), before.bytes().size());
    expect_as_on_cpu(before, near);
    expect_as_on_cpu(before, random_bits(before.view().num_elements, dtype, 2));  // most blocks are sent as they are
  }
}

TEST(WeightEncodeOnDevice, SomeBlocksChangedAndPlacesInMemory) {
  for (const int64_t shift : {0, 1, 8}) {
    for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64, DataType::kByte}) {
      const int64_t count = 4 * kWeightBlockElements + 333;
      const Array before = random_bits(count, dtype, 1);
      Array now = before;
      SCOPED_TRACE(testing::Message() << to_string(dtype) << ", shift " << shift);
      expect_as_on_cpu(before, now, kCut, shift);
      const int64_t size = element_bytes(dtype);
      now.buffer().as<uint8_t>()[(kWeightBlockElements + 7) * size] ^= 1;
      now.buffer().as<uint8_t>()[count * size - 1] ^= 1;
      expect_as_on_cpu(before, now, {48, 3}, shift);
    }
  }
}

TEST(WeightEncodeOnDevice, WithoutAReplicaTheHeaderAlone) {
  const Array shard(weights(5000), DataType::kBFloat16);
  WeightHeader header = header_of_unit(shard);
  header.has_replica = 0;
  Memory sent(kWeightHeaderBytes + WeightPackets::most_bytes(shard.view()));
  CutLauncher launcher(kCut);
  const auto coder = make_weight_coder_of_gpu(launcher);
  Memory scratch(coder->encode_scratch_bytes(shard.view()));
  coder->encode({header, {}, shard.view(), {}, sent.buffer()}, {{}, scratch.buffer()});
  header.seal();
  EXPECT_EQ(std::memcmp(sent.data(), &header, sizeof(header)), 0);
  EXPECT_EQ(sent.data()[kWeightHeaderBytes], 0xa5);
}

TEST(WeightEncodeOnDevice, TheReplicasChecksumIsInTheHeader) {
  const Array before(weights(100), DataType::kBFloat16);
  for (const int64_t words : {1, 5, 511, 513, 5000}) {
    Array replica = random_bits(8 * words, DataType::kByte, 4);
    const Sent sent = encode_on_device(before, before, {32, 3}, &replica);
    EXPECT_EQ(sent.header.replica_checksum, checksum_of(replica.view()));
    EXPECT_EQ(sent.header.packet_bytes, 0u);
    EXPECT_TRUE(sent.header.is_whole());
  }
}

TEST(WeightsOnDevice, WrongMemoryIsRefused) {
  const Array shard(weights(100), DataType::kBFloat16);
  Memory memory(4096);
  WeightEncode encode = {.header = header_of_unit(shard),
                         .before = shard.view(),
                         .shard = shard.view(),
                         .replica = {},
                         .sent = memory.buffer()};
  CutLauncher launcher(kCut);
  const auto coder = make_weight_coder_of_gpu(launcher);
  Memory scratch(coder->encode_scratch_bytes(shard.view()));
  const Workspace workspace = {{}, scratch.buffer()};
  EXPECT_THROW(coder->encode(encode, {{}, scratch.buffer().slice(0, 64)}), Error);
  EXPECT_NO_THROW(coder->encode(encode, workspace));
  encode.sent = memory.buffer().slice(0, kWeightHeaderBytes + WeightPackets::most_bytes(shard.view()) - 1);
  EXPECT_THROW(coder->encode(encode, workspace), Error);
  encode.sent = memory.buffer().slice(8, 4000);
  EXPECT_THROW(coder->encode(encode, workspace), Error);
  encode.sent = memory.buffer();
  encode.before = shard.view().slice(0, 99);
  EXPECT_THROW(coder->encode(encode, workspace), Error);
}

}  // namespace
}  // namespace isthmus::test
