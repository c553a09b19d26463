#include "kernels/quant/host.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "codec/packet_sizes.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"
#include "kernels/checksum/cpu.h"
#include "kernels/quant/settings.h"

namespace isthmus {
namespace {

using kernels::QuantLayout;
using kernels::QuantShape;

// Blocks are coded and their codes checksummed tile by tile, so that the checksum finds them in the cache, and several
// packets find their sums there.
constexpr int64_t kTileBlocks = 16;

// The checksum's word at this offset of a packet.
constexpr int64_t words_after_header(int64_t offset) {
  return (offset - static_cast<int64_t>(sizeof(PacketHeader))) / kernels::kChecksumWordBytes;
}

// The checksum of what lies before and after the codes.
uint64_t checksum_beside_codes(const std::byte* packet, const QuantLayout& layout) {
  Checksum before;
  before.add(packet + sizeof(PacketHeader), layout.codes - static_cast<int64_t>(sizeof(PacketHeader)));
  Checksum after(words_after_header(layout.tail));
  after.add(packet + layout.tail, layout.end - layout.tail);
  return before.value() + after.value();
}

// The place of a tile in the piece and in a packet.
struct Tile {
  int64_t first_block;
  int64_t num_groups;
  int64_t first_element;
  int64_t scales;  // offset in the packet, in bytes
  int64_t codes;
  int64_t codes_end;
};

template <typename Visit>
void for_each_tile(int bits, const QuantShape& shape, const QuantLayout& layout, const Visit& visit) {
  const int64_t block_bytes = int64_t{4} * kernels::kQuantLanes * bits;
  for (int64_t block = 0; block < shape.num_blocks; block += kTileBlocks) {
    const int64_t end = std::min(block + kTileBlocks, shape.num_blocks);
    const int64_t first_group = block * kernels::kQuantGroups;
    visit(Tile{.first_block = block,
               .num_groups = std::min(end * kernels::kQuantGroups, shape.num_groups) - first_group,
               .first_element = block * kernels::kQuantBlockElements,
               .scales = layout.scales + first_group * kQuantScaleBytes,
               .codes = layout.codes + block * block_bytes,
               .codes_end = layout.codes + end * block_bytes});
  }
}

// Sends the last elements, too few for a group, as they are. Returns whether one of them is NaN or Inf.
bool encode_tail(int64_t count, const float* piece, float* residual, float* tail) {
  bool is_finite = true;
  for (int64_t i = 0; i < count; ++i) {
    tail[i] = residual == nullptr ? piece[i] : piece[i] + residual[i];
    if (!std::isfinite(tail[i])) {
      is_finite = false;
    } else if (residual != nullptr) {
      residual[i] = 0;
    }
  }
  return is_finite;
}

}  // namespace

QuantCodec::QuantCodec(const Options& options)
    : bits_(quant_bits(options)), keeps_residual_(quant_keeps_residual(options)) {}

int64_t QuantCodec::packet_bytes(int64_t num_elements) const {
  return quant_layout(bits_, quant_shape(num_elements)).end;
}

CodecCounts QuantCodec::encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context, Workspace) {
  const QuantShape shape = quant_shape(piece.num_elements);
  const QuantLayout layout = quant_layout(bits_, shape);
  check_float32_piece(name(), piece, residual, keeps_residual_, packet, layout.end);
  const kernels::QuantKernels& kernel = kernels::quant_kernels();
  const uint64_t seed = kernels::quant_seed(context.unit_hash, context.step, context.segment, context.sender);
  const float* values = piece.as<float>();
  float* kept = keeps_residual_ ? residual.as<float>() : nullptr;
  std::byte* bytes = packet.as<std::byte>();
  const int64_t scales_end = layout.scales + shape.num_groups * kQuantScaleBytes;
  std::memset(bytes, 0, layout.scales);
  std::memset(bytes + scales_end, 0, layout.codes - scales_end);
  std::memset(bytes + layout.tail, 0, layout.end - layout.tail);

  Checksum checksum(words_after_header(layout.codes));
  CodecCounts counts;
  uint32_t level = context.magnitudes != nullptr ? context.magnitudes->largest : 0;
  for_each_tile(bits_, shape, layout, [&](const Tile& tile) {
    counts.non_finite_blocks += kernel.encode(
        bits_, seed, tile.first_block, tile.num_groups, values + tile.first_element,
        kept == nullptr ? nullptr : kept + tile.first_element, reinterpret_cast<uint16_t*>(bytes + tile.scales),
        reinterpret_cast<uint32_t*>(bytes + tile.codes), level);
    checksum.add(bytes + tile.codes, tile.codes_end - tile.codes);
  });
  if (context.magnitudes != nullptr) {
    context.magnitudes->largest = level;
  }
  const int64_t first_of_tail = shape.num_elements - shape.tail_elements;
  const bool tail_is_finite =
      encode_tail(shape.tail_elements, values + first_of_tail, kept == nullptr ? nullptr : kept + first_of_tail,
                  reinterpret_cast<float*>(bytes + layout.tail));
  counts.non_finite_blocks += tail_is_finite ? 0 : 1;

  PacketHeader header = make_quant_header(bits_, shape.num_elements, context);
  header.checksum = checksum.value() + checksum_beside_codes(bytes, layout);
  std::memcpy(bytes, &header, sizeof(header));
  counts.encoded_elements = counts.kept_elements = shape.num_elements;
  return counts;
}

CodecCounts QuantCodec::decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context, Workspace) {
  decode_packets(packets, num_packets, out, context, /*adds=*/true);
  return {};
}

CodecCounts QuantCodec::decode(ConstBuffer packet, Buffer out, PacketContext context, Workspace) {
  decode_packets(packet, 1, out, context, /*adds=*/false);
  return {};
}

// adds: to what stands in `out`; else the first packet replaces it, as if added to zeros.
void QuantCodec::decode_packets(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                                bool adds) const {
  const QuantShape shape = quant_shape(out.num_elements);
  const QuantLayout layout = quant_layout(bits_, shape);
  check_float32_sum(name(), out);
  check_packets(name(), packets, num_packets, layout.end);
  const kernels::QuantKernels& kernel = kernels::quant_kernels();
  const auto packet_at = [&](int p) { return packets.as<std::byte>() + p * layout.end; };

  std::vector<uint64_t> seeds;
  std::vector<PacketHeader> headers;
  std::vector<Checksum> checksums;
  for (int p = 0; p < num_packets; ++p) {
    const PacketContext of_packet = context.of_packet(p);
    seeds.push_back(kernels::quant_seed(of_packet.unit_hash, of_packet.step, of_packet.segment, of_packet.sender));
    headers.push_back(read_header(packet_at(p), make_quant_header(bits_, shape.num_elements, of_packet)));
    checksums.emplace_back(words_after_header(layout.codes));
  }
  for_each_tile(bits_, shape, layout, [&](const Tile& tile) {
    for (int p = 0; p < num_packets; ++p) {
      const auto decode = adds || p > 0 ? kernel.decode_add : kernel.decode;
      decode(bits_, seeds[p], tile.first_block, tile.num_groups,
             reinterpret_cast<const uint16_t*>(packet_at(p) + tile.scales),
             reinterpret_cast<const uint32_t*>(packet_at(p) + tile.codes), out.as<float>() + tile.first_element);
      checksums[p].add(packet_at(p) + tile.codes, tile.codes_end - tile.codes);
    }
  });
  float* sums = out.as<float>() + (shape.num_elements - shape.tail_elements);
  for (int p = 0; p < num_packets; ++p) {
    const auto* tail = reinterpret_cast<const float*>(packet_at(p) + layout.tail);
    for (int64_t i = 0; i < shape.tail_elements; ++i) {
      sums[i] = (adds || p > 0 ? sums[i] : 0) + tail[i];
    }
    const uint64_t checksum = checksums[p].value() + checksum_beside_codes(packet_at(p), layout);
    if (checksum != headers[p].checksum) {
      throw_wrong_checksum(headers[p], checksum);
    }
  }
}

}  // namespace isthmus
