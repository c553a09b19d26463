// The CPU executor's decoding of codec `sparse`. Compiled once for each instruction set.
#pragma once

#include <type_traits>

#include "kernels/sparse/block.h"
#include "kernels/tagc/lanes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline bool all_zero(const uint8_t* bytes, int64_t count) {
  uint8_t any = 0;
  for (int64_t i = 0; i < count; ++i) {
    any |= bytes[i];
  }
  return any == 0;
}

// The contents of a packet's block, checked, before any value is added.
struct Placement {
  SparseFault fault;
  bool flagged;
  uint16_t positions[kSparseBlockElements];  // of its values in the block: ascending, if there is no fault
};

// count: elements of the block.
inline void place(int64_t keep, int64_t count, const SparseBlock<const uint8_t>& block, Placement& placement) {
  placement.flagged = block.is_flagged();
  placement.fault = SparseFault::kNone;
  const uint32_t end0 = block.count(0);
  const uint32_t end1 = end0 + block.count(1);
  const uint32_t end2 = end1 + block.count(2);
  if (placement.flagged || end2 + block.count(3) != keep) {
    placement.fault = placement.flagged ? SparseFault::kNone : SparseFault::kCounts;
    return;
  }
  uint16_t* positions = placement.positions;
  for (int32_t i = 0; i < static_cast<int32_t>(keep); ++i) {
    const auto next = static_cast<uint32_t>(i);
    const uint32_t quarter = (next >= end0) + (next >= end1) + (next >= end2);
    positions[i] = static_cast<uint16_t>(quarter * kSparseQuarterElements + block.offsets[i]);
  }
  uint16_t descends = 0;
  for (int64_t i = 1; i < keep; ++i) {
    descends |= positions[i] <= positions[i - 1];
  }
  if (descends != 0 || positions[keep - 1] >= count) {
    placement.fault = SparseFault::kOffsets;
  }
}

// The same, of one block of a packet; prefetches the elements that its values will be added to.
inline void place_and_fetch(const SparseShape& shape, const SparseLayout& layout, int64_t b, const uint8_t* packet,
                            const float* out, Placement& placement) {
  const int64_t keep = shape.keep_of(b);
  place(keep, shape.elements_of(b), SparseBlock<const uint8_t>(shape, layout, b, packet), placement);
  if (!placement.flagged && placement.fault == SparseFault::kNone) {
    const float* block_out = out + b * kSparseBlockElements;
    for (int64_t i = 0; i < keep; ++i) {
      __builtin_prefetch(block_out + placement.positions[i], 1);
    }
  }
}

inline SparseFault decode_flagged(const SparseShape& shape, int64_t keep, int64_t count,
                                  const SparseBlock<const uint8_t>& block, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = float_of(kNanBits);
  }
  const bool empty = all_zero(block.offsets, keep) && all_zero(block.values, keep * shape.value_bytes()) &&
                     (!shape.has_scales() || all_zero(block.scale, 2));
  return empty ? SparseFault::kNone : SparseFault::kFlagged;
}

template <typename Value>
inline void add_values(Value /*value*/, int64_t keep, const SparseBlock<const uint8_t>& block,
                       const uint16_t* positions, float* out) {
  float scale = 0;
  if constexpr (std::is_same_v<Value, SparseValue<SparseValueType::kInt8>>) {
    scale = widen_bfloat16(*reinterpret_cast<const uint16_t*>(block.scale));
  }
  const auto* wire = reinterpret_cast<const typename Value::Wire*>(block.values);
  for (int64_t i = 0; i < keep; ++i) {
    out[positions[i]] += Value::decode(wire[i], scale);
  }
}

// While a block's values are added, the places of the next ones are prefetched.
template <typename Value>
inline SparseFault decode_blocks(Value value, const SparseShape& shape, const SparseLayout& layout,
                                 const uint8_t* packet, float* out) {
  constexpr int64_t kAhead = 7;
  Placement placements[kAhead + 1];
  for (int64_t next = 0; next < shape.num_blocks + kAhead; ++next) {
    if (next < shape.num_blocks) {
      place_and_fetch(shape, layout, next, packet, out, placements[next % (kAhead + 1)]);
    }
    const int64_t b = next - kAhead;
    if (b < 0) {
      continue;
    }
    const Placement& placement = placements[b % (kAhead + 1)];
    const SparseBlock<const uint8_t> block(shape, layout, b, packet);
    float* block_out = out + b * kSparseBlockElements;
    SparseFault fault = placement.fault;
    if (placement.flagged) {
      fault = decode_flagged(shape, shape.keep_of(b), shape.elements_of(b), block, block_out);
    } else if (fault == SparseFault::kNone) {
      add_values(value, shape.keep_of(b), block, placement.positions, block_out);
    }
    if (fault != SparseFault::kNone) {
      return fault;
    }
  }
  return SparseFault::kNone;
}

inline SparseFault decode_add_sparse(const SparseShape& shape, const SparseLayout& layout, const uint8_t* packet,
                                     float* out) {
  SparseFault fault = SparseFault::kNone;
  with_value_type(shape.value_type, [&](auto value) { fault = decode_blocks(value, shape, layout, packet, out); });
  return fault;
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
