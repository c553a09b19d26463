// Settings, shapes, seeds and scratch memory of codec `tagc`, shared by its two forms.
#pragma once

#include <cstdint>
#include <vector>

#include "isthmus/codec.h"
#include "isthmus/packet_header.h"
#include "kernels/tagc/layout.h"

namespace isthmus {

// What tests set to cross a boundary with few elements.
struct TagcLimits {
  int64_t block_elements = 0;  // neighbouring elements treated together, a power of two from 64; 0: by the piece's size
  int64_t peel_rounds = 64;    // at most
};

// The options of tagc, validated (OptionError).
struct TagcSettings {
  explicit TagcSettings(const Options& options, TagcLimits its_limits = {});

  double ratio;  // 0: rows by load
  double sparsity;
  kernels::CellType cell_type;
  TagcLimits limits;

  kernels::TagcShape shape(int64_t num_elements) const;

  // How many elements of a piece are kept: (1 - sparsity) * num_elements, rounded down, but at least one of a piece
  // that is not empty, so that the residual of a small piece drains as well.
  int64_t keep(int64_t num_elements) const;
};

kernels::TagcLayout tagc_layout(const kernels::TagcShape& shape);

// All of a packet's header but the checksum.
PacketHeader make_tagc_header(const kernels::TagcShape& shape, int64_t peel_rounds, PacketContext context);

// Throw Error where a caller's buffers have the wrong type or size.
void check_tagc_piece(ConstBuffer piece, ConstBuffer residual, ConstBuffer packet, int64_t packet_bytes);
void check_tagc_packets(ConstBuffer packets, int64_t num_packets, ConstBuffer out, int64_t packet_bytes);

// Decides rows and signs of all blocks. Differs from step to step, so that blocks which collide in one step do not in
// the next.
uint64_t tagc_seed(PacketContext context);

// The block whose elements have precedence in this step if not all can be sent. It moves on from step to step.
int64_t tagc_first_block(const kernels::TagcShape& shape, PacketContext context);

// Scratch memory of one encoder or decoder: grows, never shrinks.
struct TagcScratch {
  std::vector<kernels::BlockRows> rows;
  std::vector<uint32_t> candidates;
  std::vector<uint64_t> flags;
  std::vector<uint64_t> index;
  std::vector<uint64_t> remaining;
  std::vector<uint64_t> once;
  std::vector<uint64_t> twice;
  std::vector<uint32_t> active;
  std::vector<uint64_t> waiting_keys;
  std::vector<uint32_t> keys_before;
  std::vector<float> waiting_values;
  std::vector<uint64_t> sketch;

  // Rows of all blocks.
  const kernels::BlockRows* hash(const kernels::TagcShape& shape, uint64_t seed);

  // The kernels' view, with `marks` less the flagged blocks (null: none) as the remaining keys.
  kernels::PeelScratch peel(const kernels::TagcShape& shape, const uint64_t* marks, const uint64_t* flagged_blocks);
  // The additional scratch memory for recovering the values of these keys.
  kernels::ValueScratch values(const kernels::TagcShape& shape, const kernels::PeelScratch& keys);
};

// `values` with at least `size` elements.
template <typename T>
T* grow(std::vector<T>& values, int64_t size) {
  if (static_cast<int64_t>(values.size()) < size) {
    values.resize(size);
  }
  return values.data();
}

}  // namespace isthmus
