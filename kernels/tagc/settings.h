// Settings, shapes, seeds and scratch memory of codec `tagc`, which its two forms share.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "isthmus/codec.h"
#include "isthmus/packet_header.h"
#include "kernels/tagc/layout.h"

namespace isthmus {

// Tests set these to reach boundaries with few elements.
struct TagcLimits {
  int64_t block_elements = 0;  // neighbouring elements treated together, a power of two from 64; 0: by the piece's size
  int64_t peel_rounds = 64;    // at most
};

// The validated options of tagc; a bad one throws OptionError.
struct TagcSettings {
  explicit TagcSettings(const Options& options, TagcLimits its_limits = {});

  double ratio;
  double sparsity;
  TagcLimits limits;

  kernels::TagcShape shape(int64_t num_elements) const;

  // How many elements of a piece are kept: (1 - sparsity) * num_elements, rounded down, but at least one of a piece
  // that is not empty, so that the residual of a small piece drains too.
  int64_t keep(int64_t num_elements) const;
};

kernels::TagcLayout tagc_layout(const kernels::TagcShape& shape);

// A packet's header without the checksum.
PacketHeader make_tagc_header(const kernels::TagcShape& shape, int64_t peel_rounds, PacketContext context);

// The scratch memory of one encoder or decoder, which grows and never shrinks.
struct TagcScratch {
  std::vector<kernels::BlockRows> rows;
  std::vector<uint32_t> candidates;
  std::vector<uint64_t> flags;
  std::vector<uint64_t> index;
  std::vector<uint64_t> remaining;
  std::vector<uint64_t> once;
  std::vector<uint64_t> twice;
  std::vector<uint32_t> active;
  std::vector<uint64_t> sketch;

  const kernels::BlockRows* hash(const kernels::TagcShape& shape, const PacketContext& context);

  // TagcKernels::select() of an encoding; shows the context's magnitudes the largest sum.
  kernels::Selection select(const kernels::TagcShape& shape, int64_t keep, ConstBuffer piece, Buffer residual,
                            uint64_t* flagged_blocks, uint64_t* marks, const PacketContext& context);

  // What kernels take to peel. The keys are `marks` without those in flagged blocks (null: none is flagged).
  kernels::PeelScratch peel(const kernels::TagcShape& shape, const uint64_t* marks, const uint64_t* flagged_blocks);
};

// Calls visit(block) for each block whose bit is set in `flags`.
template <typename Visit>
void for_each_flagged(const kernels::TagcShape& shape, const uint64_t* flags, Visit visit) {
  for (int64_t word = 0; word < shape.flag_words(); ++word) {
    for (uint64_t flagged = flags[word]; flagged != 0; flagged &= flagged - 1) {
      visit(64 * word + std::countr_zero(flagged));
    }
  }
}

// Returns `values`, grown to at least `size` elements.
template <typename T>
T* grow(std::vector<T>& values, int64_t size) {
  if (static_cast<int64_t>(values.size()) < size) {
    values.resize(size);
  }
  return values.data();
}

}  // namespace isthmus
