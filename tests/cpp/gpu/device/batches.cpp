// What the communicator asks of codecs: several pieces encoded at once, and a shard decoded with all that it is the sum
// of, against what the CPU makes of them one by one.
#include <string>
#include <vector>

#include "isthmus/codec_type.h"
#include "isthmus/error.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/gpu/device/coding.h"
#include "tests/cpp/gpu/device/tests.h"
#include "tests/cpp/support/error_of.h"

namespace isthmus::gpu {
namespace {

constexpr int kRanksPerNode = 2;

struct Batch {
  std::string codec = {};
  DataType dtype = DataType::kFloat32;
  int num_nodes = 3;
  int node = 0;
  int64_t piece_elements = 5000;
  int64_t begin = 0;  // of the segment
  int64_t num_elements = 5000;
  double scale = 1;
  bool is_widened = false;  // the shard is float32
  bool feedback = false;

  std::string name() const {
    return codec + " of " + to_string(dtype) + ", node " + std::to_string(node) + " of " + std::to_string(num_nodes) +
           ", " + std::to_string(num_elements) + " from " + std::to_string(begin) + " of " +
           std::to_string(piece_elements) + (is_widened ? ", into float32" : "") + (feedback ? ", feedback" : "");
  }
};

HostArray drawn(int64_t num_elements, uint32_t seed, DataType dtype) {
  return {make_piece(Data::kHeavyTail, num_elements, seed), dtype};
}

// The CPU and the device with the same data.
class BothSides {
 public:
  explicit BothSides(const Batch& batch)
      : batch_(batch),
        gpu_(make_gpu()),
        device_(gpu_->device()),
        stream_(device_.lane(Lane::kEncode)),
        taken_dtype_(batch.codec == "none" ? batch.dtype : DataType::kFloat32),
        cpu_(make_codec(batch.codec, options(), batch.dtype, kRanksPerNode)),
        codec_(device_.make_codec(batch.codec, options(), batch.dtype, kRanksPerNode)),
        packet_bytes_(cpu_->packet_bytes(batch.num_elements)),
        pieces_(drawn(batch.num_nodes * batch.piece_elements, 1, batch.dtype)),
        pieces_there_(device_, pieces_.view()),
        context_there_(device_, sizeof(kernels::DeviceContext), DataType::kByte) {}

  void compare_packets() {
    const HostArray taken = pieces_.as(taken_dtype_);
    HostArray residuals =
        drawn(cpu_->keeps_residual() ? (batch_.num_nodes - 1) * batch_.piece_elements : 0, 2, DataType::kFloat32);
    const DeviceArray residuals_there(device_, residuals.view());
    HostArray packets(batch_.num_nodes * packet_bytes_, DataType::kByte);
    const DeviceArray packets_there(device_, packets.view());
    const CodecCounts expected =
        cpu_->encode_pieces(set_of(taken.view(), residuals.buffer(), packets.buffer()), kContext, {});
    const PieceSet set = set_of(pieces_there_.buffer(), residuals_there.buffer(), packets_there.buffer());
    const DeviceArray scratch(device_, codec_->encode_scratch_bytes(set), DataType::kByte);
    const CodecCounts counts = codec_->encode_pieces(set, begin_step(kContext), {stream_, scratch.buffer()});
    require_equal(packets_there, packets, "packets");
    require_equal(residuals_there, residuals, "residuals");
    require(counts.encoded_elements == expected.encoded_elements, "elements are counted differently");
    require_counted_step();
  }

  // damaged_node: whose packet arrives with a flipped bit, and is to be named; -1: none.
  void compare_shards(int damaged_node = -1) {
    HostArray packets = arrived_packets();
    if (damaged_node >= 0) {
      packets.buffer().as<uint8_t>()[(damaged_node + 1) * packet_bytes_ - 9] ^= 4;
    }
    const DeviceArray packets_there(device_, packets.view());
    HostArray shard(batch_.num_elements, batch_.is_widened ? DataType::kFloat32 : batch_.dtype);
    const DeviceArray shard_there(device_, shard.view());
    const PacketContext context = {.unit_hash = kContext.unit_hash, .step = kContext.step, .segment = kContext.segment};
    const ShardSum sum = sum_of(pieces_.view(), packets.view(), shard.buffer());
    HostArray cpu_scratch(cpu_->decode_scratch_bytes(sum), DataType::kByte);
    const std::string expected = test::error_of<PacketError>([&] {
      cpu_->decode_shard(sum, context, {{}, cpu_scratch.buffer()});
    });
    const ShardSum sum_there = sum_of(pieces_there_.buffer(), packets_there.buffer(), shard_there.buffer());
    const DeviceArray scratch(device_, codec_->decode_scratch_bytes(sum_there), DataType::kByte);
    codec_->decode_shard(sum_there, begin_step(context), {stream_, scratch.buffer()});
    gpu_->synchronize();
    if (damaged_node >= 0) {
      const std::string found = complaint_of(device_);
      require(found == expected && !found.empty(), "the device says \"" + found + "\", the CPU \"" + expected + "\"");
      return;
    }
    device_.throw_if_faulted();
    require_equal(shard_there, shard, "shards");
    require_counted_step();
  }

 private:
  Options options() const { return batch_.codec == "quant" ? quant_options(4, batch_.feedback) : Options(); }

  // The step is counted in the same words.
  PacketContext begin_step(PacketContext context) {
    auto* words = context_there_.buffer().as<kernels::DeviceContext>();
    device_.set_contexts(words, 1, context, stream_);
    return {.segment = context.segment, .sender = context.sender, .on_device = words, .counted = words};
  }
  void require_counted_step() {
    const HostArray context = context_there_.get();
    require(context.view().as<kernels::DeviceContext>()->step == kContext.step + 1, "the step was not counted");
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

  ShardSum sum_of(ConstBuffer pieces, ConstBuffer packets, Buffer shard) const {
    return {.own = pieces.part(batch_.node, batch_.piece_elements).slice(batch_.begin, batch_.num_elements),
            .packets = packets,
            .num_nodes = batch_.num_nodes,
            .node = batch_.node,
            .scale = batch_.scale,
            .shard = shard};
  }

  // One from each node; none at the own place.
  HostArray arrived_packets() {
    HostArray packets(batch_.num_nodes * packet_bytes_, DataType::kByte);
    for (int node = 0; node < batch_.num_nodes; ++node) {
      const HostArray piece = drawn(batch_.num_elements, 10 + static_cast<uint32_t>(node), taken_dtype_);
      HostArray residual(cpu_->keeps_residual() ? batch_.num_elements : 0, DataType::kFloat32);
      PacketContext context = kContext;
      context.sender = static_cast<uint16_t>(node);
      if (node != batch_.node) {
        cpu_->encode(piece.view(), residual.buffer(), packets.buffer().part(node, packet_bytes_), context, {});
      }
    }
    return packets;
  }

  const Batch batch_;
  const std::unique_ptr<Gpu> gpu_;
  Device& device_;
  const Stream stream_;
  const DataType taken_dtype_;  // by the CPU's codec
  const std::unique_ptr<HostCodec> cpu_;
  const std::unique_ptr<Codec> codec_;
  const int64_t packet_bytes_;
  const HostArray pieces_;
  const DeviceArray pieces_there_;
  const DeviceArray context_there_;
};

std::vector<Batch> batches_of(const std::string& codec) {
  std::vector<Batch> batches;
  for (int node = 0; node < 3; ++node) {
    batches.push_back({.node = node, .scale = .25});
  }
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    batches.push_back({.dtype = dtype, .num_nodes = 2, .node = 1, .scale = 1. / 3});
    batches.push_back({.dtype = dtype, .num_nodes = 4, .node = 2});
    batches.push_back({.dtype = dtype, .scale = .5, .is_widened = true});
  }
  for (const int64_t elements : {1, 2, 3, 515, 4097}) {  // pieces that begin anywhere
    batches.push_back({.piece_elements = elements, .num_elements = elements});
    batches.push_back(
        {.dtype = DataType::kBFloat16, .num_nodes = 2, .piece_elements = elements, .num_elements = elements});
  }
  batches.push_back({.node = 1, .piece_elements = 9001, .begin = 4096, .num_elements = 4096});
  batches.push_back({.node = 1, .piece_elements = 9001, .begin = 8192, .num_elements = 809});
  for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    batches.push_back(
        {.dtype = dtype, .num_nodes = 19, .node = 17, .piece_elements = 700, .num_elements = 700, .scale = 2});
  }
  if (codec == "quant") {
    batches.push_back({.node = 1, .piece_elements = 4999, .num_elements = 4999, .feedback = true});
  }
  for (Batch& batch : batches) {
    batch.codec = codec;
  }
  return batches;
}

}  // namespace

void add_batches() {
  for (const std::string& codec : codec_names()) {
    for (const Batch& batch : batches_of(codec)) {
      add_test("Codecs", "at once: " + batch.name(), [=] {
        BothSides both(batch);
        both.compare_packets();
        both.compare_shards();
      });
    }
    for (const int damaged : {0, 2}) {
      add_test("Codecs", "at once: " + codec + ", a damaged packet of node " + std::to_string(damaged),
               [=] { BothSides({.codec = codec, .node = 1}).compare_shards(damaged); });
    }
  }
}

}  // namespace isthmus::gpu
