#include "kernels/tagc/settings.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/packet_sizes.h"
#include "isthmus/error.h"
#include "kernels/block/hashes.h"
#include "kernels/block/magnitudes.h"

namespace isthmus {

namespace {

using kernels::kMinBlockElements;
using kernels::TagcShape;

// Blocks are as long as possible, because long rows are fast, as long as the sketch has this many rows. With fewer rows
// too many blocks share all three, and what both keep in one column cannot be peeled.
constexpr int64_t kWantedRows = 96;
constexpr int64_t kLongestChosenBlock = 1024;

TagcShape shape_with_blocks(double ratio, int64_t num_elements, int64_t block_elements) {
  TagcShape shape;
  shape.num_elements = num_elements;
  shape.block_elements = block_elements;
  shape.num_blocks = divide_up(num_elements, block_elements);
  if (shape.num_blocks > 0) {
    const double rows = static_cast<double>(shape.num_blocks) / ratio;
    shape.num_rows = std::max<int64_t>(3, static_cast<int64_t>(std::ceil(rows)));
  }
  return shape;
}

}  // namespace

TagcSettings::TagcSettings(const Options& options, TagcLimits its_limits)
    : ratio(options.ratio), sparsity(options.sparsity), limits(its_limits) {
  options.validate();
  ISTHMUS_CHECK(OptionError, options.error_feedback != ErrorFeedback::kOff,
                "error_feedback is off, must be codec or on with tagc, which drops most of a gradient in each step");
}

TagcShape TagcSettings::shape(int64_t num_elements) const {
  if (limits.block_elements != 0) {
    return shape_with_blocks(ratio, num_elements, limits.block_elements);
  }
  TagcShape shape = shape_with_blocks(ratio, num_elements, kLongestChosenBlock);
  while (shape.num_rows < kWantedRows && shape.block_elements > kMinBlockElements) {
    shape = shape_with_blocks(ratio, num_elements, shape.block_elements / 2);
  }
  return shape;
}

int64_t TagcSettings::keep(int64_t num_elements) const {
  // 1 - .9 is a little below .1, which must not cost an element.
  constexpr double kRoundingSlack = 1e-6;
  const double share = (1 - sparsity) * static_cast<double>(num_elements);
  const int64_t keep = static_cast<int64_t>(std::floor(share + kRoundingSlack));
  return std::clamp<int64_t>(keep, std::min<int64_t>(1, num_elements), num_elements);
}

kernels::TagcLayout tagc_layout(const TagcShape& shape) {
  kernels::TagcLayout layout = {};
  layout.flags = section_bytes(sizeof(PacketHeader));
  layout.index = layout.flags + section_bytes(shape.flag_words() * 8);
  layout.sketch = layout.index + section_bytes(shape.index_words() * 8);
  layout.end = layout.sketch + shape.sketch_bytes();
  return layout;
}

PacketHeader make_tagc_header(const TagcShape& shape, int64_t peel_rounds, PacketContext context) {
  const uint64_t settings = static_cast<uint64_t>(std::countr_zero(static_cast<uint64_t>(shape.block_elements))) |
                            static_cast<uint64_t>(peel_rounds) << 8 | static_cast<uint64_t>(shape.num_rows) << 32;
  return make_header(CodecId::kTagc, DataType::kFloat32, shape.num_elements, settings, context);
}

const kernels::BlockRows* TagcScratch::hash(const TagcShape& shape, const PacketContext& context) {
  kernels::BlockRows* block_rows = grow(rows, shape.num_blocks);
  kernels::tagc_kernels().hash_blocks(shape, kernels::seed_of_step(context.unit_hash, context.step), block_rows);
  return block_rows;
}

kernels::Selection TagcScratch::select(const TagcShape& shape, int64_t keep, ConstBuffer piece, Buffer residual,
                                       uint64_t* flagged_blocks, uint64_t* marks, const PacketContext& context) {
  const kernels::TagcKernels& kernel = kernels::tagc_kernels();
  uint32_t* memory = grow(candidates, kernels::selection_capacity(shape, keep));
  const uint32_t bound = kernel.sample_bound(shape, keep, piece.as<float>(), residual.as<float>(), memory);
  const kernels::Selection selection =
      kernel.select(shape, keep, bound, piece.as<float>(), residual.as<float>(), flagged_blocks, marks, memory);
  if (context.magnitudes != nullptr) {
    context.magnitudes->largest = std::max(context.magnitudes->largest, kernels::level_of_magnitude(selection.largest));
  }
  return selection;
}

kernels::PeelScratch TagcScratch::peel(const TagcShape& shape, const uint64_t* marks, const uint64_t* flagged_blocks) {
  uint64_t* keys = grow(remaining, shape.index_words());
  std::copy_n(marks, shape.index_words(), keys);
  if (flagged_blocks != nullptr) {
    for_each_flagged(shape, flagged_blocks,
                     [&](int64_t block) { std::fill_n(keys + block * shape.block_words(), shape.block_words(), 0); });
  }
  const int64_t row_words = shape.num_rows * shape.block_words();
  return {keys, grow(once, row_words), grow(twice, row_words), grow(active, shape.num_blocks)};
}

}  // namespace isthmus
