#include "tests/cpp/gpu/device/coding.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "isthmus/error.h"
#include "tests/cpp/gpu/device/tests.h"
#include "tests/cpp/support/error_of.h"

namespace isthmus::gpu {
namespace {

// What lies in sums before anything is added.
constexpr float kStart = .125F;

// Whether there is a residual, as every codec says of itself.
int64_t residual_elements(const Codec& codec, int64_t num_elements) {
  return codec.keeps_residual() ? num_elements : 0;
}

// The options that matter to the codec.
std::string settings_of(const std::string& codec, const Options& options) {
  char settings[96] = "";
  if (codec == "tagc") {
    std::snprintf(settings, sizeof(settings), ", ratio %g, sparsity %g", options.ratio, options.sparsity);
  } else if (codec == "quant") {
    std::snprintf(settings, sizeof(settings), ", %d bits%s", static_cast<int>(options.bits),
                  options.error_feedback == ErrorFeedback::kOn ? ", feedback" : "");
  }
  return settings;
}

int64_t elements_of_places(const CodingShape& shape, int64_t num_elements) {
  return shape.num_packets > 1 ? shape.num_packets * num_elements : 0;
}

HostArray start_of_sums(int64_t num_elements, DataType dtype) {
  return {std::vector<float>(static_cast<size_t>(num_elements), kStart), dtype};
}

}  // namespace

std::string CodingShape::name() const {
  std::string text = codec + ", " + to_string(piece);
  if (codec == "none" && wire != piece) {
    text += std::string(" as ") + to_string(wire);
  }
  text += settings_of(codec, options);
  text += num_packets > 1 ? ", " + std::to_string(num_packets) + " packets" : "";
  return text + (offset > 0 ? ", misaligned" : "");
}

Options tagc_options(double ratio, double sparsity) {
  Options options;
  options.ratio = ratio;
  options.sparsity = sparsity;
  return options;
}

Options quant_options(int64_t bits, bool error_feedback) {
  Options options;
  options.bits = bits;
  options.error_feedback = error_feedback ? ErrorFeedback::kOn : ErrorFeedback::kOff;
  return options;
}

DeviceCoding::DeviceCoding(Device& device, const CodingShape& shape, int64_t num_elements)
    : device_(device),
      shape_(shape),
      codec_(device.make_codec(shape.codec, shape.options, shape.wire, shape.ranks_per_node)),
      packet_bytes_(codec_->packet_bytes(num_elements)),
      piece_(device, num_elements, shape.piece, shape.offset),
      residual_(device, residual_elements(*codec_, num_elements), DataType::kFloat32, shape.offset),
      packets_(device, shape.num_packets * packet_bytes_, DataType::kByte),
      out_(device, num_elements, accumulate_dtype(shape.wire), shape.offset),
      places_(device, elements_of_places(shape, num_elements), accumulate_dtype(shape.wire)),
      scratch_(device,
               std::max({codec_->encode_scratch_bytes({.num_elements = num_elements}),
                         codec_->decode_scratch_bytes(sum()), codec_->decode_scratch_bytes(sum_to_shard()),
                         codec_->decode_each_scratch_bytes(num_elements, shape.num_packets)}),
               DataType::kByte),
      context_(device, sizeof(kernels::DeviceContext), DataType::kByte) {
  residual_.set(HostArray(residual_.buffer().num_elements, DataType::kFloat32).view());
  out_.set(start_of_sums(num_elements, accumulate_dtype(shape.wire)).view());
}

PacketContext DeviceCoding::on_device() const {
  PacketContext context = of_host_;
  context.on_device = context_.buffer().as<kernels::DeviceContext>();
  return context;
}

void DeviceCoding::set_context(PacketContext context, Stream stream) {
  device_.set_contexts(context_.buffer().as<kernels::DeviceContext>(), 1, context, stream);
  of_host_ = {.segment = context.segment, .sender = context.sender};
}

void DeviceCoding::next_step(Stream stream) {
  device_.next_step(context_.buffer().as<kernels::DeviceContext>(), stream);
}

void DeviceCoding::encode(Stream stream) {
  const Buffer first = packets_.buffer().slice(0, packet_bytes_);
  codec_->encode_pieces(PieceSet::of_one(piece_.buffer(), residual_.buffer(), first), on_device(),
                        {stream, scratch_.buffer()});
}

void DeviceCoding::decode(Stream stream) { codec_->decode_shard(sum(), on_device(), {stream, scratch_.buffer()}); }

// All packets are added to what stands there: this node's place is behind them.
ShardSum DeviceCoding::sum() {
  const int num_nodes = shape_.num_packets + 1;
  const ConstBuffer packets = {packets_.buffer().data, num_nodes * packet_bytes_, DataType::kByte};
  return {.own = out_.buffer(),
          .packets = packets,
          .num_nodes = num_nodes,
          .node = shape_.num_packets,
          .shard = out_.buffer()};
}

void DeviceCoding::decode_to_shard(Stream stream) {
  codec_->decode_shard(sum_to_shard(), on_device(), {stream, scratch_.buffer()});
}

ShardSum DeviceCoding::sum_to_shard() {
  ShardSum to_shard = sum();
  to_shard.own = piece_.buffer();
  to_shard.shard = {out_.buffer().data, piece_.buffer().num_elements, shape_.piece};
  to_shard.scale = 0.0625;
  return to_shard;
}

void DeviceCoding::decode_each(Stream stream) {
  codec_->decode_each(packets_.buffer(), shape_.num_packets, places_.buffer(), on_device(),
                      {stream, scratch_.buffer()});
}

HostCoding::HostCoding(const CodingShape& shape, int64_t num_elements)
    : shape_(shape),
      codec_(make_codec(shape.codec, shape.options, shape.wire, shape.ranks_per_node)),
      packet_bytes_(codec_->packet_bytes(num_elements)),
      residual_(residual_elements(*codec_, num_elements), DataType::kFloat32),
      packets_(shape.num_packets * packet_bytes_, DataType::kByte),
      out_(start_of_sums(num_elements, accumulate_dtype(shape.wire))),
      places_(elements_of_places(shape, num_elements), accumulate_dtype(shape.wire)) {}

void HostCoding::encode(ConstBuffer piece, int packet, PacketContext context) {
  HostArray converted(piece.num_elements, accumulate_dtype(shape_.wire));
  convert(piece, converted.buffer());
  counts_ += codec_->encode(converted.view(), residual_.buffer(), packets_.buffer().part(packet, packet_bytes_),
                            context.of_packet(packet), {});
}

void HostCoding::decode(PacketContext context) {
  codec_->decode_sum(packets_.view(), shape_.num_packets, out_.buffer(), context, {});
}

void HostCoding::decode_each(PacketContext context) {
  codec_->decode_each(packets_.view(), shape_.num_packets, places_.buffer(), context, {});
}

void require_equal(const DeviceArray& on_device, const HostArray& on_host, const std::string& what) {
  const int64_t where = first_difference(on_device.get().view(), on_host.view());
  require(where < 0, what + " differ at element " + std::to_string(where));
}

void require_equal(DeviceCoding& on_device, HostCoding& on_host) {
  require_equal(on_device.packets(), on_host.packets(), "packets");
  require_equal(on_device.residual(), on_host.residual(), "residuals");
  require_equal(on_device.out(), on_host.out(), "sums");
}

std::string complaint_of(Device& device) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (std::chrono::steady_clock::now() < deadline) {
    const std::string complaint = test::error_of<PacketError>([&] { device.throw_if_faulted(); });
    if (!complaint.empty()) {
      return complaint;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "";
}

}  // namespace isthmus::gpu
