#include "codec/sparse/host.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "codec/checksum.h"
#include "isthmus/error.h"

namespace isthmus {

namespace {

using kernels::SparseFault;
using kernels::SparseLayout;
using kernels::SparseShape;

void check_intact(bool condition, const char* what, const PacketHeader& header) {
  ISTHMUS_CHECK(PacketError, condition, "corrupt packet: ", what, " (codec sparse, unit ", header.unit_hash, ", step ",
                header.step, ", ", header.num_elements, " elements)");
}

// The end of the header: of all that follows it.
uint64_t checksum_of(const std::byte* packet, const SparseLayout& layout) {
  Checksum checksum;
  checksum.add(packet + layout.counts, layout.end - layout.counts);
  return checksum.value();
}

bool gaps_are_zero(const std::byte* packet, const SparseShape& shape, const SparseLayout& layout) {
  bool zero = true;
  kernels::for_each_sparse_gap(shape, layout, [&](int64_t begin, int64_t end) {
    zero = zero && std::all_of(packet + begin, packet + end, [](std::byte byte) { return byte == std::byte{0}; });
  });
  return zero;
}

void decode_add(const std::byte* packet, const SparseShape& shape, const SparseLayout& layout,
                const PacketHeader& expected, float* out) {
  const PacketHeader header = read_header(packet, expected);
  check_intact(checksum_of(packet, layout) == header.checksum, "its bytes do not have the checksum in its header",
               header);
  check_intact(gaps_are_zero(packet, shape, layout), "its padding is not zero", header);
  const SparseFault fault =
      kernels::sparse_kernels().decode_add(shape, layout, reinterpret_cast<const uint8_t*>(packet), out);
  check_intact(fault != SparseFault::kCounts, "a block's counts do not add up to what it keeps", header);
  check_intact(fault != SparseFault::kOffsets, "a block's offsets do not ascend within it", header);
  check_intact(fault != SparseFault::kFlagged, "a flagged block holds values", header);
}

}  // namespace

int64_t SparseCodec::packet_bytes(int64_t num_elements) const {
  return sparse_layout(settings_.shape(num_elements)).end;
}

CodecCounts SparseCodec::encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context, Workspace) {
  const SparseShape shape = settings_.shape(piece.num_elements);
  const SparseLayout layout = sparse_layout(shape);
  check_sparse_piece(piece, residual, packet, layout.end, settings_.feedback);
  std::byte* bytes = packet.as<std::byte>();
  kernels::for_each_sparse_gap(shape, layout, [&](int64_t begin, int64_t end) {
    std::memset(bytes + begin, 0, static_cast<size_t>(end - begin));
  });
  const kernels::SparseCounts encoded = kernels::sparse_kernels().encode(
      shape, layout, piece.as<float>(), settings_.feedback ? residual.as<float>() : nullptr, packet.as<uint8_t>());
  PacketHeader header = make_sparse_header(shape, context);
  header.checksum = checksum_of(bytes, layout);
  std::memcpy(bytes, &header, sizeof(header));
  CodecCounts counts;
  counts.encoded_elements = shape.num_elements;
  counts.kept_elements = encoded.kept_elements;
  counts.non_finite_blocks = encoded.non_finite_blocks;
  return counts;
}

CodecCounts SparseCodec::decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                                    Workspace) {
  const SparseShape shape = settings_.shape(out.num_elements);
  const SparseLayout layout = sparse_layout(shape);
  check_sparse_packets(packets, num_packets, out, layout.end);
  for (int p = 0; p < num_packets; ++p) {
    decode_add(packets.as<std::byte>() + p * layout.end, shape, layout, make_sparse_header(shape, context.of_packet(p)),
               out.as<float>());
  }
  return {};  // counted by the sender
}

}  // namespace isthmus
