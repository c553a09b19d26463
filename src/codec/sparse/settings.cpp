#include "codec/sparse/settings.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "isthmus/error.h"

namespace isthmus {

namespace {

using kernels::kSparseBlockElements;
using kernels::SparseShape;
using kernels::SparseValueType;

constexpr int64_t round_up(int64_t bytes, int64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

SparseValueType value_type_of(const std::string& name) {
  if (name == "fp32") {
    return SparseValueType::kFloat32;
  }
  return name == "bf16" ? SparseValueType::kBFloat16 : SparseValueType::kInt8;
}

// To the nearest, and halves up; but at least one.
int64_t keep_of(int64_t block_elements, double sparsity) {
  // 1 - .9 is a little below .1: do not lose an element to that.
  constexpr double kRoundingSlack = 1e-6;
  const double share = (1 - sparsity) * static_cast<double>(block_elements);
  return std::clamp<int64_t>(static_cast<int64_t>(std::floor(share + .5 + kRoundingSlack)), 1, block_elements);
}

}  // namespace

SparseSettings::SparseSettings(const Options& options)
    : sparsity(options.sparsity),
      value_type(value_type_of(options.value_type)),
      feedback(options.error_feedback != "off") {
  options.validate();
}

SparseShape SparseSettings::shape(int64_t num_elements) const {
  SparseShape shape;
  shape.num_elements = num_elements;
  shape.num_blocks = (num_elements + kSparseBlockElements - 1) / kSparseBlockElements;
  shape.keep = keep_of(kSparseBlockElements, sparsity);
  shape.value_type = value_type;
  if (shape.num_blocks > 0) {
    shape.last_keep = keep_of(num_elements - (shape.num_blocks - 1) * kSparseBlockElements, sparsity);
  }
  return shape;
}

kernels::SparseLayout sparse_layout(const SparseShape& shape) {
  constexpr int64_t kSectionBytes = 8;  // every section begins at a multiple of this
  constexpr int64_t kPacketBytes = 16;  // and every packet, of those that lie one after another
  const auto after = [](int64_t offset, int64_t bytes) { return round_up(offset + bytes, kSectionBytes); };
  kernels::SparseLayout layout = {};
  layout.counts = static_cast<int64_t>(sizeof(PacketHeader));
  layout.scales = after(layout.counts, shape.num_blocks * kernels::kSparseQuarters * shape.count_bytes());
  layout.offsets = after(layout.scales, shape.has_scales() ? 2 * shape.num_blocks : 0);
  layout.values = after(layout.offsets, shape.kept_elements());
  layout.end = round_up(layout.values + shape.kept_elements() * shape.value_bytes(), kPacketBytes);
  return layout;
}

PacketHeader make_sparse_header(const SparseShape& shape, PacketContext context) {
  PacketHeader header;
  header.codec = CodecId::kSparse;
  header.dtype = DataType::kFloat32;
  header.unit_hash = context.unit_hash;
  header.step = context.step;
  header.segment = context.segment;
  header.sender = context.sender;
  header.num_elements = static_cast<uint64_t>(shape.num_elements);
  header.settings = static_cast<uint64_t>(shape.keep) | static_cast<uint64_t>(shape.last_keep) << 16 |
                    static_cast<uint64_t>(shape.value_type) << 32;
  return header;
}

void check_sparse_piece(ConstBuffer piece, ConstBuffer residual, ConstBuffer packet, int64_t packet_bytes,
                        bool feedback) {
  ISTHMUS_CHECK(Error, piece.dtype == DataType::kFloat32, "codec sparse encodes float32 pieces, not ",
                to_string(piece.dtype));
  const int64_t residual_elements = feedback ? piece.num_elements : 0;
  ISTHMUS_CHECK(Error, residual.num_elements == residual_elements, "codec sparse: residual of ", residual.num_elements,
                " elements for a piece of ", piece.num_elements, feedback ? "" : " without error feedback");
  ISTHMUS_CHECK(Error, residual.num_elements == 0 || residual.dtype == DataType::kFloat32, "codec sparse: residual of ",
                to_string(residual.dtype), ", not float32");
  ISTHMUS_CHECK(Error, packet.bytes() == packet_bytes, "codec sparse: packet of ", packet.bytes(), " bytes where ",
                packet_bytes, " are needed");
}

void check_sparse_packets(ConstBuffer packets, int64_t num_packets, ConstBuffer out, int64_t packet_bytes) {
  ISTHMUS_CHECK(Error, out.dtype == DataType::kFloat32, "codec sparse decodes to float32, not ", to_string(out.dtype));
  ISTHMUS_CHECK(Error, packets.bytes() == num_packets * packet_bytes, "codec sparse: ", packets.bytes(), " bytes for ",
                num_packets, " packets of ", packet_bytes);
}

}  // namespace isthmus
