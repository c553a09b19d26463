// The steps of codec `sparse`, as functions of raw memory. The algorithm is described in docs/sparse.md, the sections
// of a packet in docs/packet_format.md.
#pragma once

#include <cstdint>

#include "kernels/block/host_device.h"

namespace isthmus::kernels {

inline constexpr int64_t kSparseBlockElements = 1024;
inline constexpr int64_t kSparseQuarters = 4;  // of a block: the elements whose offsets share all but their low byte
inline constexpr int64_t kSparseQuarterElements = kSparseBlockElements / kSparseQuarters;

// The type in which kept values are sent. The numbers are those of the header's settings.
enum class SparseValueType : uint8_t { kFloat32 = 1, kBFloat16 = 2, kInt8 = 3 };

// How a piece is cut, and how much of it is kept. All blocks are whole, but the last may be shorter.
struct SparseShape {
  int64_t num_elements = 0;
  int64_t num_blocks = 0;  // num_elements / kSparseBlockElements, rounded up
  int64_t keep = 0;        // elements of a whole block: 1 to kSparseBlockElements
  int64_t last_keep = 0;   // elements of the last block, whole or not; 0 if there is none
  SparseValueType value_type = SparseValueType::kFloat32;

  // Always inlined: every instruction set compiles these, and the linker must not choose between them.
  [[gnu::always_inline]] ISTHMUS_DEVICE int64_t kept_elements() const {
    return num_blocks == 0 ? 0 : (num_blocks - 1) * keep + last_keep;
  }
  [[gnu::always_inline]] ISTHMUS_DEVICE int64_t keep_of(int64_t block) const {
    return block == num_blocks - 1 ? last_keep : keep;
  }
  [[gnu::always_inline]] ISTHMUS_DEVICE int64_t elements_of(int64_t block) const {
    return block == num_blocks - 1 ? num_elements - block * kSparseBlockElements : kSparseBlockElements;
  }
  // A quarter's count fits a byte unless whole quarters may be kept.
  [[gnu::always_inline]] ISTHMUS_DEVICE int64_t count_bytes() const { return keep < kSparseQuarterElements ? 1 : 2; }
  [[gnu::always_inline]] ISTHMUS_DEVICE int64_t value_bytes() const {
    return value_type == SparseValueType::kFloat32 ? 4 : value_type == SparseValueType::kBFloat16 ? 2 : 1;
  }
  [[gnu::always_inline]] ISTHMUS_DEVICE bool has_scales() const { return value_type == SparseValueType::kInt8; }
};

// Where a packet's sections begin, in bytes, and where it ends. See docs/packet_format.md.
struct SparseLayout {
  int64_t counts;
  int64_t scales;
  int64_t offsets;
  int64_t values;
  int64_t end;
};

// visit(begin, end) for each of the gaps after sections, which are zeros.
template <typename Visit>
[[gnu::always_inline]] ISTHMUS_DEVICE void for_each_sparse_gap(const SparseShape& shape, const SparseLayout& layout,
                                                               Visit visit) {
  visit(layout.counts + shape.num_blocks * kSparseQuarters * shape.count_bytes(), layout.scales);
  visit(layout.scales + (shape.has_scales() ? 2 * shape.num_blocks : 0), layout.offsets);
  visit(layout.offsets + shape.kept_elements(), layout.values);
  visit(layout.values + shape.kept_elements() * shape.value_bytes(), layout.end);
}

// The first fault of a packet's blocks, in the order of the checks.
enum class SparseFault : uint8_t {
  kNone,
  kCounts,   // a block's counts do not add up to what it keeps
  kOffsets,  // a block's offsets do not ascend, or lead outside it
  kFlagged,  // a block that is flagged holds something
};

struct SparseCounts {
  int64_t kept_elements = 0;      // in blocks that are not flagged
  int64_t non_finite_blocks = 0;  // flagged: they held NaN or Inf, and their residual stays as it was
};

// All functions are given pieces of `shape`'s size and packets of `layout`.
struct SparseKernels {
  // Writes all blocks' counts, scales, offsets and values; nothing else of the packet. residual: updated in place, or
  // null for none.
  SparseCounts (*encode)(const SparseShape& shape, const SparseLayout& layout, const float* piece, float* residual,
                         uint8_t* packet);

  // out += the packet's values; NaN where a block is flagged. Never writes outside `out`, whatever the packet holds;
  // unless the result is kNone, `out` is unspecified.
  SparseFault (*decode_add)(const SparseShape& shape, const SparseLayout& layout, const uint8_t* packet, float* out);
};

// The kernels in the instruction set in use.
const SparseKernels& sparse_kernels();

}  // namespace isthmus::kernels
