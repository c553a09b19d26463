#include "kernels/tagc/host.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "codec/device_jobs.h"
#include "codec/packet_sizes.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"
#include "kernels/checksum/cpu.h"
#include "kernels/tagc/settings.h"

namespace isthmus {

namespace {

using kernels::FaultKind;
using kernels::TagcLayout;
using kernels::TagcShape;

void check_intact(bool condition, FaultKind kind, const PacketHeader& header) {
  ISTHMUS_CHECK(PacketError, condition, "corrupt packet: ", text_of(kind), " ", text_of(header));
}

// The checksum of everything after the header, which ends it.
uint64_t checksum_of(const std::byte* packet, const TagcLayout& layout) {
  Checksum checksum;
  checksum.add(packet + sizeof(PacketHeader), layout.end - static_cast<int64_t>(sizeof(PacketHeader)));
  return checksum.value();
}

// Makes the marked elements of flagged blocks NaN.
void add_nan(const TagcShape& shape, const uint64_t* flags, const uint64_t* index, float* out) {
  for_each_flagged(shape, flags, [&](int64_t block) {
    const int64_t end = std::min((block + 1) * shape.block_elements, shape.num_elements);
    for (int64_t i = block * shape.block_elements; i < end; ++i) {
      if ((index[i / 64] >> (i % 64) & 1) != 0) {
        out[i] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  });
}

}  // namespace

int64_t TagcCodec::packet_bytes(int64_t num_elements) const { return tagc_layout(settings_.shape(num_elements)).end; }

CodecCounts TagcCodec::encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context, Workspace) {
  const TagcShape shape = settings_.shape(piece.num_elements);
  const TagcLayout layout = tagc_layout(shape);
  check_float32_piece(name(), piece, residual, true, packet, layout.end);
  const kernels::TagcKernels& kernel = kernels::tagc_kernels();
  std::byte* bytes = packet.as<std::byte>();
  auto* flags = reinterpret_cast<uint64_t*>(bytes + layout.flags);
  auto* index = reinterpret_cast<uint64_t*>(bytes + layout.index);
  std::memset(bytes, 0, layout.index);
  std::memset(bytes + layout.index + shape.index_words() * 8, 0, layout.end - layout.index - shape.index_words() * 8);

  const kernels::Selection selection =
      scratch_.select(shape, settings_.keep(shape.num_elements), piece, residual, flags, index, context);
  const kernels::BlockRows* rows = scratch_.hash(shape, context);
  const int64_t first_block = kernels::tagc_first_block(shape.num_blocks, context.step);
  const kernels::PeelResult peeled = kernel.hold_back(shape, rows, settings_.limits.peel_rounds, first_block, index,
                                                      scratch_.peel(shape, index, flags));
  kernel.insert_xor(shape, rows, flags, index, residual.as<float>(),
                    reinterpret_cast<uint32_t*>(bytes + layout.sketch));

  PacketHeader header = make_tagc_header(shape, settings_.limits.peel_rounds, context);
  header.checksum = checksum_of(bytes, layout);
  std::memcpy(bytes, &header, sizeof(header));
  return {.encoded_elements = shape.num_elements,
          .kept_elements = peeled.peeled_elements,
          .held_back_elements = peeled.left_elements,
          .non_finite_blocks = selection.non_finite_blocks};
}

CodecCounts TagcCodec::decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context, Workspace) {
  const TagcShape shape = settings_.shape(out.num_elements);
  const TagcLayout layout = tagc_layout(shape);
  check_float32_sum(name(), out);
  check_packets(name(), packets, num_packets, layout.end);
  const kernels::BlockRows* rows = scratch_.hash(shape, context);
  for (int p = 0; p < num_packets; ++p) {
    const std::byte* packet = packets.as<std::byte>() + p * layout.end;
    const PacketHeader header =
        read_header(packet, make_tagc_header(shape, settings_.limits.peel_rounds, context.of_packet(p)));
    check_intact(checksum_of(packet, layout) == header.checksum, FaultKind::kChecksum, header);
    const auto* flags = reinterpret_cast<const uint64_t*>(packet + layout.flags);
    const auto* index = reinterpret_cast<const uint64_t*>(packet + layout.index);
    const uint32_t found = kernels::tagc_kernels().find_faults(shape, layout, packets.as<uint8_t>() + p * layout.end);
    check_intact(found == 0, static_cast<FaultKind>(std::countr_zero(found)), header);
    add_nan(shape, flags, index, out.as<float>());
    const int64_t sketch_words = shape.sketch_bytes() / 8;
    uint64_t* sketch = grow(scratch_.sketch, sketch_words);
    std::copy_n(reinterpret_cast<const uint64_t*>(packet + layout.sketch), sketch_words, sketch);
    const kernels::PeelScratch keys = scratch_.peel(shape, index, flags);
    const kernels::PeelResult peeled = kernels::tagc_kernels().peel_xor(
        shape, rows, settings_.limits.peel_rounds, keys, reinterpret_cast<uint32_t*>(sketch), out.as<float>());
    check_intact(peeled.left_elements == 0, FaultKind::kDoesNotPeel, header);
    check_intact(std::all_of(sketch, sketch + sketch_words, [](uint64_t cells) { return cells == 0; }),
                 FaultKind::kCellsLeft, header);
  }
  return {};  // the sender has counted them
}

}  // namespace isthmus
