#include "kernels/weights/weight_coder.h"

#include <cstring>

#include "codec/gpu_device.h"
#include "codec/packet_sizes.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

class HostWeightCoder final : public WeightCoder {
 public:
  int64_t encode_scratch_bytes(ConstBuffer /*shard*/) const override { return 0; }
  void encode(const WeightEncode& encode, Workspace /*workspace*/) override {
    WeightHeader header = encode.header;
    if (encode.before.data != nullptr) {
      const Buffer packet =
          encode.sent.slice(kernels::kWeightHeaderBytes, encode.sent.bytes() - kernels::kWeightHeaderBytes);
      header.replica_checksum = encode.replica.data == nullptr ? 0 : checksum_of(encode.replica);
      header.packet_bytes = static_cast<uint64_t>(packets_.encode(encode.before, encode.shard, packet));
      header.packet_checksum = checksum_of(packet.slice(0, static_cast<int64_t>(header.packet_bytes)));
    }
    header.seal();
    std::memcpy(encode.sent.data, &header, sizeof(header));
  }

  int64_t decode_scratch_bytes(ConstBuffer /*shard*/, int64_t /*num_nodes*/) const override { return 0; }
  void decode(const WeightDecode& decode, Workspace /*workspace*/) override {
    const auto* const headers = decode.headers.as<WeightHeader>();
    const int64_t row_bytes = decode.packets.bytes() / decode.num_nodes;
    for (int64_t node = 0; node < decode.num_nodes; ++node) {
      const WeightHeader& header = headers[node];
      const Buffer piece = decode.replica.part(node, decode.shard.num_elements);
      if (node == decode.node) {
        std::memcpy(piece.data, decode.shard.data, static_cast<size_t>(decode.shard.bytes()));
      } else if (header.packet_bytes > 0) {
        const ConstBuffer packet = decode.packets.slice(node * row_bytes, static_cast<int64_t>(header.packet_bytes));
        const uint64_t checksum = checksum_of(packet);
        ISTHMUS_CHECK(PacketError, checksum == header.packet_checksum,
                      text_of_damage(static_cast<uint64_t>(node), checksum, header.packet_checksum));
        packets_.decode(packet, piece);
      }
    }
  }

 private:
  WeightPackets packets_;
};

}  // namespace

int64_t weight_sent_bytes(ConstBuffer shard) {
  return kernels::kWeightHeaderBytes + WeightPackets::most_bytes(shard) + WeightPackets::kMarginBytes;
}

int64_t weight_row_bytes(int64_t longest_packet) { return round_up(longest_packet + WeightPackets::kMarginBytes, 16); }

std::unique_ptr<WeightCoder> make_weight_coder(Device& device) {
  if (device.is_host()) {
    return std::make_unique<HostWeightCoder>();
  }
  return make_weight_coder_of_gpu(dynamic_cast<GpuDevice&>(device).passes().launcher);
}

}  // namespace isthmus
