#include "tests/gpu/support/coding.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/aligned_memory.h"
#include "tests/gpu/support/checks.h"

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
    std::snprintf(settings, sizeof(settings), ", ratio %g, sparsity %g, cells %s", options.ratio, options.sparsity,
                  options.cell_type.c_str());
  } else if (codec == "quant") {
    std::snprintf(settings, sizeof(settings), ", %d bits%s", static_cast<int>(options.bits),
                  options.error_feedback == "on" ? ", feedback" : "");
  }
  return settings;
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
  options.error_feedback = error_feedback ? "on" : "off";
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
      encode_scratch_(device, codec_->encode_scratch_bytes({.num_elements = num_elements}), DataType::kByte),
      decode_scratch_(device, codec_->decode_scratch_bytes(sum()), DataType::kByte),
      context_(device, sizeof(kernels::DeviceContext), DataType::kByte) {
  residual_.set(HostArray(residual_.buffer().num_elements, DataType::kFloat32).view());
  out_.set(start_of_sums(num_elements, accumulate_dtype(shape.wire)).view());
}

PacketContext DeviceCoding::on_device() {
  PacketContext context = {.sender = kContext.sender};
  context.on_device = context_.buffer().as<kernels::DeviceContext>();
  return context;
}

void DeviceCoding::set_context(PacketContext context, Stream stream) {
  device_.set_context(context_.buffer().as<kernels::DeviceContext>(), context, stream);
}

void DeviceCoding::next_step(Stream stream) {
  device_.next_step(context_.buffer().as<kernels::DeviceContext>(), stream);
}

void DeviceCoding::encode(int packet, Stream stream) {
  const Buffer place = packets_.buffer().part(packet, packet_bytes_);
  codec_->encode_pieces(PieceSet::of_one(piece_.buffer(), residual_.buffer(), place), on_device().of_packet(packet),
                        {stream, encode_scratch_.buffer()});
}

void DeviceCoding::decode(Stream stream) {
  codec_->decode_shard(sum(), on_device(), {stream, decode_scratch_.buffer()});
}

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

HostCoding::HostCoding(const CodingShape& shape, int64_t num_elements)
    : shape_(shape),
      codec_(make_codec(shape.codec, shape.options, shape.wire, shape.ranks_per_node)),
      packet_bytes_(codec_->packet_bytes(num_elements)),
      residual_(residual_elements(*codec_, num_elements), DataType::kFloat32),
      packets_(shape.num_packets * packet_bytes_, DataType::kByte),
      out_(start_of_sums(num_elements, accumulate_dtype(shape.wire))) {}

void HostCoding::encode(ConstBuffer piece, int packet, PacketContext context) {
  HostArray converted(piece.num_elements, accumulate_dtype(shape_.wire));
  convert(piece, converted.buffer());
  const AlignedMemory memory = allocate_aligned(std::max<int64_t>(packet_bytes_, 1));
  const Buffer bytes = {memory.get(), packet_bytes_, DataType::kByte};
  counts_ += codec_->encode(converted.view(), residual_.buffer(), bytes, context.of_packet(packet), {});
  std::memcpy(packets_.buffer().part(packet, packet_bytes_).data, memory.get(), static_cast<size_t>(packet_bytes_));
}

void HostCoding::decode(PacketContext context) {
  const int64_t num_bytes = packets_.num_elements();
  const AlignedMemory memory = allocate_aligned(std::max<int64_t>(num_bytes, 1));
  std::memcpy(memory.get(), packets_.view().data, static_cast<size_t>(num_bytes));
  codec_->decode_sum({memory.get(), num_bytes, DataType::kByte}, shape_.num_packets, out_.buffer(), context, {});
}

void require_equal(DeviceCoding& on_device, HostCoding& on_host) {
  require(same_bytes(on_device.packets().get().view(), on_host.packets().view()), "packets differ");
  const int64_t residual = first_difference(on_device.residual().get().view(), on_host.residual().view());
  require(residual < 0, "residuals differ at element " + std::to_string(residual));
  const int64_t sum = first_difference(on_device.out().get().view(), on_host.out().view());
  require(sum < 0, "sums differ at element " + std::to_string(sum));
}

}  // namespace isthmus::gpu
