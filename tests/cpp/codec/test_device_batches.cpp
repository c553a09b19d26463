// Several pieces encoded at once, and a shard decoded with all that it is the sum of, as passes on many groups: bit for
// bit what the CPU makes of them one by one. And how many passes that takes.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "codec/none/device.h"
#include "codec/passes_codec.h"
#include "codec/quant/device.h"
#include "codec/tagc/device.h"
#include "isthmus/codec_type.h"
#include "tests/cpp/support/on_device.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus {
namespace {

using test::Array;
using test::random_values;

constexpr uint64_t kUnitHash = 0xfedcba9876543210;
constexpr uint64_t kStep = 7;

// Runs the passes of jobs at once, in memory of the host, and counts them.
class CountingLauncher final : public DeviceLauncher {
 public:
  explicit CountingLauncher(Cut cut) : device_(cut.num_threads, cut.max_groups, 1, cut.threads) {}

  void run(const kernels::Job& job, Stream /*stream*/) override {
    const auto run_each = [&](const auto& each) {
      using Job = std::remove_cvref_t<decltype(each)>;
      if constexpr (std::is_base_of_v<kernels::EncodeJobBase, Job> || std::is_base_of_v<kernels::DecodeJobBase, Job>) {
        kernels::emulated::run_passes(device_, each);
      }
    };
    std::visit(run_each, job);
  }
  // Since the last call.
  int num_passes() {
    const int before = passes_before_;
    passes_before_ = device_.num_passes();
    return passes_before_ - before;
  }

 private:
  EmulatedDevice device_;
  int passes_before_ = 0;
};

struct Batch {
  std::string codec = {};
  DataType dtype = DataType::kFloat32;
  int num_nodes = 2;
  int node = 0;
  int64_t piece_elements = 5000;
  int64_t begin = 0;  // of the segment
  int64_t num_elements = 5000;
  double scale = 1;
  DataType shard_dtype = DataType::kByte;  // kByte: as dtype
  bool feedback = false;
};

std::ostream& operator<<(std::ostream& out, const Batch& batch) {
  return out << batch.codec << " of " << to_string(batch.dtype) << ", node " << batch.node << " of " << batch.num_nodes
             << ", " << batch.num_elements << " from " << batch.begin << " of " << batch.piece_elements;
}

// The CPU and the device with the same data.
class BatchTest {
 public:
  BatchTest(const Batch& batch, Cut cut)
      : batch_(batch),
        launcher_(cut),
        cpu_(make_codec(batch.codec, options(), batch.dtype, 2)),
        device_(make_device_codec()),
        context_memory_{kUnitHash, kStep},
        pieces_(random_values(batch.num_nodes * batch.piece_elements, 1), batch.dtype),
        packet_bytes_(cpu_->packet_bytes(batch.num_elements)) {}

  void expect_same_packets() {
    const int num_encoded = set_of({}, {}, {}).num_encoded();
    const int64_t residual_elements = cpu_->keeps_residual() ? num_encoded * batch_.piece_elements : 0;
    const Array residuals(random_values(residual_elements, 2), DataType::kFloat32);
    Array expected_residuals = residuals;
    Array given_residuals = residuals;
    Memory expected(batch_.num_nodes * packet_bytes_);
    Memory packets(batch_.num_nodes * packet_bytes_);
    const Array widened = in_float32(pieces_.view());
    const bool cpu_takes_type = batch_.codec == "none";
    const CodecCounts cpu_counts = cpu_->encode_pieces(
        set_of(cpu_takes_type ? pieces_.view() : widened.view(), expected_residuals.buffer(), expected.buffer()),
        {.unit_hash = kUnitHash, .step = kStep, .segment = 3, .sender = sender()}, {});
    const PieceSet set = set_of(pieces_.view(), given_residuals.buffer(), packets.buffer());
    Memory scratch(device_->encode_scratch_bytes(set));
    const CodecCounts device_counts = device_->encode_pieces(set, on_device(sender()), {{}, scratch.buffer()});
    EXPECT_TRUE(packets.ends_intact() && scratch.ends_intact()) << batch_;
    EXPECT_TRUE(packets.copy() == expected.copy()) << batch_;
    EXPECT_TRUE(given_residuals.bytes() == expected_residuals.bytes()) << batch_;
    EXPECT_EQ(context_memory_.step, kStep + 1) << batch_;
    EXPECT_EQ(device_counts.encoded_elements, cpu_counts.encoded_elements) << batch_;
  }

  // damaged_node: whose packet arrives with a flipped bit, and is to be named; -1: none.
  void expect_same_shard(int damaged_node = -1) {
    const DataType shard_dtype = batch_.shard_dtype == DataType::kByte ? batch_.dtype : batch_.shard_dtype;
    Memory packets = arrived_packets();
    if (damaged_node >= 0) {
      packets.data()[(damaged_node + 1) * packet_bytes_ - 9] ^= 4;
    }
    Array expected(batch_.num_elements, shard_dtype);
    Array shard(batch_.num_elements, shard_dtype);
    const ShardSum sum = sum_of(packets, expected.buffer());
    Memory cpu_scratch(cpu_->decode_scratch_bytes(sum));
    const PacketContext context = {.unit_hash = kUnitHash, .step = kStep, .segment = 3};
    if (damaged_node < 0) {
      cpu_->decode_shard(sum, context, {{}, cpu_scratch.buffer()});
    }
    const ShardSum of_device = sum_of(packets, shard.buffer());
    Memory scratch(device_->decode_scratch_bytes(of_device));
    device_->decode_shard(of_device, on_device(0), {{}, scratch.buffer()});
    EXPECT_TRUE(scratch.ends_intact()) << batch_;
    if (damaged_node >= 0) {
      EXPECT_EQ(fault_.reported, 1U) << batch_;
      EXPECT_EQ(fault_.packet(), damaged_node) << batch_;
    } else {
      EXPECT_EQ(fault_.code, kernels::DeviceFault::kNone) << batch_;
      EXPECT_EQ(context_memory_.step, kStep + 1) << batch_;
      EXPECT_TRUE(shard.bytes() == expected.bytes()) << batch_;
    }
  }

  int num_passes() { return launcher_.num_passes(); }

 private:
  template <JobMaker Maker>
  std::unique_ptr<Codec> make_codec_of(Maker maker) {
    return std::make_unique<PassesCodec<Maker>>(std::move(maker), PassesOfDevice{launcher_, &counts_, &fault_});
  }
  std::unique_ptr<Codec> make_device_codec() {
    if (batch_.codec == "quant") {
      return make_codec_of(QuantDevice(options()));
    }
    return batch_.codec == "tagc" ? make_codec_of(TagcDevice(options())) : make_codec_of(NoneDevice(batch_.dtype, 2));
  }

  static uint16_t sender() { return 5; }

  Options options() const {
    Options options;
    options.codec = batch_.codec;
    options.error_feedback = batch_.feedback ? "on" : "codec";
    return options;
  }

  static Array in_float32(ConstBuffer values) {
    Array converted(values.num_elements, DataType::kFloat32);
    convert(values, converted.buffer());
    return converted;
  }

  // The step is counted in the same words.
  PacketContext on_device(uint16_t sender_node) {
    context_memory_ = {kUnitHash, kStep};
    return {.segment = 3, .sender = sender_node, .on_device = &context_memory_, .counted = &context_memory_};
  }

  PieceSet set_of(ConstBuffer pieces, Buffer residuals, Buffer packets) const {
    return {.pieces = pieces,
            .residuals = residuals,
            .packets = packets,
            .num_nodes = batch_.num_nodes,
            .left_out = batch_.node,
            .begin = batch_.begin,
            .num_elements = batch_.num_elements};
  }

  // One from each node; garbage at the own place.
  Memory arrived_packets() {
    Memory packets(batch_.num_nodes * packet_bytes_);
    for (int node = 0; node < batch_.num_nodes; ++node) {
      if (node == batch_.node) {
        continue;
      }
      const Array piece(random_values(batch_.num_elements, 10 + node), DataType::kFloat32);
      Array as_taken(batch_.num_elements, batch_.codec == "none" ? batch_.dtype : DataType::kFloat32);
      convert(piece.view(), as_taken.buffer());
      Array residual(cpu_->keeps_residual() ? batch_.num_elements : 0, DataType::kFloat32);
      cpu_->encode(as_taken.view(), residual.buffer(), packets.buffer().part(node, packet_bytes_),
                   {.unit_hash = kUnitHash, .step = kStep, .segment = 3, .sender = static_cast<uint16_t>(node)}, {});
    }
    return packets;
  }

  ShardSum sum_of(Memory& packets, Buffer shard) const {
    return {.own = pieces_.view().part(batch_.node, batch_.piece_elements).slice(batch_.begin, batch_.num_elements),
            .packets = packets.buffer(),
            .num_nodes = batch_.num_nodes,
            .node = batch_.node,
            .scale = batch_.scale,
            .shard = shard};
  }

  const Batch batch_;
  CountingLauncher launcher_;
  kernels::DeviceCounts counts_;
  kernels::DeviceFault fault_;
  const std::unique_ptr<HostCodec> cpu_;
  const std::unique_ptr<Codec> device_;
  kernels::DeviceContext context_memory_;
  const Array pieces_;
  const int64_t packet_bytes_;
};

// Fewer groups than pieces, as many, and a number that pieces do not divide.
const std::vector<Cut> kCuts = {{32, 1}, {32, 2}, {64, 7}};

class DeviceBatches : public ::testing::TestWithParam<std::string> {
 protected:
  static void expect_same(Batch batch) {
    batch.codec = GetParam();
    for (const Cut cut : kCuts) {
      BatchTest test(batch, cut);
      test.expect_same_packets();
      test.expect_same_shard();
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Codecs, DeviceBatches, ::testing::ValuesIn(codec_names()),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(DeviceBatches, AnyNodeIsLeftOut) {
  for (int node = 0; node < 3; ++node) {
    expect_same({.num_nodes = 3, .node = node, .scale = .25});
  }
}

TEST_P(DeviceBatches, TypesOfSixteenBits) {
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    expect_same({.dtype = dtype, .num_nodes = 2, .node = 1, .scale = 1. / 3});
    expect_same({.dtype = dtype, .num_nodes = 4, .node = 2, .scale = 1});
    expect_same({.dtype = dtype, .num_nodes = 3, .node = 0, .scale = .5, .shard_dtype = DataType::kFloat32});
  }
}

TEST_P(DeviceBatches, PiecesThatBeginAnywhere) {
  for (const int64_t piece_elements : {1, 2, 3, 515, 4097}) {
    expect_same({.num_nodes = 3, .node = 0, .piece_elements = piece_elements, .num_elements = piece_elements});
    expect_same({.dtype = DataType::kBFloat16,
                 .num_nodes = 2,
                 .node = 0,
                 .piece_elements = piece_elements,
                 .num_elements = piece_elements});
  }
}

TEST_P(DeviceBatches, SegmentsOfPieces) {
  expect_same({.num_nodes = 3, .node = 1, .piece_elements = 9001, .begin = 4096, .num_elements = 4096});
  expect_same({.num_nodes = 3, .node = 1, .piece_elements = 9001, .begin = 8192, .num_elements = 809});
}

TEST_P(DeviceBatches, ManyNodes) {
  expect_same({.num_nodes = 19, .node = 17, .piece_elements = 700, .num_elements = 700, .scale = 2});
  expect_same({.dtype = DataType::kBFloat16, .num_nodes = 19, .node = 3, .piece_elements = 700, .num_elements = 700});
}

TEST_P(DeviceBatches, WithErrorFeedback) {
  if (GetParam() == "quant") {
    expect_same({.num_nodes = 3, .node = 1, .piece_elements = 4999, .num_elements = 4999, .feedback = true});
  }
}

TEST_P(DeviceBatches, AFaultNamesTheNodeOfThePacket) {
  for (const int damaged : {0, 2}) {
    BatchTest test({.codec = GetParam(), .num_nodes = 3, .node = 1}, kCuts.back());
    test.expect_same_shard(damaged);
  }
}

struct Passes {
  int encode;
  int decode;
};

// A launch on a GPU each. Their number is the same for any number of nodes.
Passes passes_of(const std::string& codec) {
  if (codec == "tagc") {
    return {.encode = 11, .decode = 2};
  }
  return {.encode = 2, .decode = 2};
}

TEST_P(DeviceBatches, PassesDoNotGrowWithTheNodes) {
  for (const int num_nodes : {2, 8}) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
      BatchTest test({.codec = GetParam(), .dtype = dtype, .num_nodes = num_nodes, .scale = .5}, {32, 2});
      const Passes expected = passes_of(GetParam());
      test.expect_same_packets();
      EXPECT_EQ(test.num_passes(), expected.encode) << num_nodes;
      test.expect_same_shard();
      EXPECT_EQ(test.num_passes(), expected.decode) << num_nodes;
    }
  }
}

}  // namespace
}  // namespace isthmus
