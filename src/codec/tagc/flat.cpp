#include "codec/tagc/flat.h"

#include <algorithm>

#include "codec/tagc/settings.h"
#include "isthmus/error.h"

namespace isthmus {

namespace {

using kernels::TagcShape;

constexpr int kMaxWorldOfCounts = 15;  // the most that a 4-bit count holds

// Turns bit i of `bits` into count i, 0 or 1. A byte has two counts, the lower four bits first.
void bits_to_counts(const uint64_t* bits, int64_t num_bits, uint8_t* counts) {
  for (int64_t i = 0; i < num_bits; i += 2) {
    const uint64_t pair = bits[i / 64] >> (i % 64);
    counts[i / 2] = static_cast<uint8_t>((pair & 1) | (pair & 2) << 3);
  }
}

// Sets bit i where count i is above 0.
void counts_to_bits(const uint8_t* counts, int64_t num_bits, uint64_t* bits) {
  std::fill_n(bits, num_bits / 64, 0);
  for (int64_t i = 0; i < num_bits; i += 2) {
    const uint64_t pair =
        static_cast<uint64_t>((counts[i / 2] & 0x0f) != 0) | static_cast<uint64_t>((counts[i / 2] & 0xf0) != 0) << 1;
    bits[i / 64] |= pair << (i % 64);
  }
}

// Clears marks past the last element. Only damage sets them, and they must not lead to writes there.
void clear_padding(const TagcShape& shape, uint64_t* index) {
  const int64_t whole = shape.num_elements / 64;
  if (whole < shape.index_words()) {
    index[whole] &= (uint64_t{1} << (shape.num_elements % 64)) - 1;
    std::fill(index + whole + 1, index + shape.index_words(), 0);
  }
}

}  // namespace

TagcFlat::TagcFlat(const Options& options, int world_size, TagcLimits limits)
    : settings_(options, limits), index_bits_(options.index_bits) {
  ISTHMUS_CHECK(OptionError, options.index_bits == 1 || options.index_bits == 4, "index_bits is ", options.index_bits,
                ", must be 1 or 4");
  ISTHMUS_CHECK(OptionError, options.cell_type == "fp32", "cell_type is ", options.cell_type,
                ", must be fp32 with tiers=flat, where sums of several ranks are merged in a cell");
  ISTHMUS_CHECK(OptionError, options.ratio != 0,
                "ratio is 0, rows by load: must be 1 to 64 with tiers=flat, where the load depends on all ranks");
  ISTHMUS_CHECK(OptionError, options.index_bits == 1 || world_size <= kMaxWorldOfCounts,
                "index_bits is 4, which counts to ", kMaxWorldOfCounts, ", with ", world_size,
                " ranks: use index_bits=1");
}

int64_t TagcFlat::index_bytes(int64_t shard_elements) const {
  return settings_.shape(shard_elements).index_words() * 8 * index_bits_;
}

int64_t TagcFlat::sketch_elements(int64_t shard_elements) const { return settings_.shape(shard_elements).num_cells(); }

ReduceOp TagcFlat::index_op() const { return index_bits_ == 1 ? ReduceOp::kBitOr : ReduceOp::kSum; }

CodecCounts TagcFlat::encode(ConstBuffer chunk, Buffer residual, Buffer index, Buffer sketch, PacketContext context) {
  const TagcShape shape = settings_.shape(chunk.num_elements);
  ISTHMUS_CHECK(Error, chunk.dtype == DataType::kFloat32 && residual.dtype == DataType::kFloat32,
                "flat tagc encodes float32 chunks with float32 residuals, not ", to_string(chunk.dtype), " with ",
                to_string(residual.dtype));
  ISTHMUS_CHECK(Error, residual.num_elements == chunk.num_elements, "flat tagc: residual of ", residual.num_elements,
                " elements for a chunk of ", chunk.num_elements);
  ISTHMUS_CHECK(Error, index.bytes() == index_bytes(chunk.num_elements) && sketch.num_elements == shape.num_cells(),
                "flat tagc: index of ", index.bytes(), " bytes and sketch of ", sketch.num_elements,
                " cells, where a chunk of ", chunk.num_elements, " elements has ", index_bytes(chunk.num_elements),
                " and ", shape.num_cells());
  const kernels::TagcKernels& kernel = kernels::tagc_kernels();
  uint64_t* flags = grow(scratch_.flags, shape.flag_words());
  uint64_t* marks = grow(scratch_.index, shape.index_words());
  const int64_t keep = settings_.keep(shape.num_elements);
  uint32_t* candidates = grow(scratch_.candidates, kernels::selection_capacity(shape, keep));
  const uint32_t bound = kernel.sample_bound(shape, keep, chunk.as<float>(), residual.as<float>(), candidates);
  const kernels::Selection selection =
      kernel.select(shape, keep, bound, chunk.as<float>(), residual.as<float>(), flags, marks, candidates);
  show_largest(selection, context);

  std::fill_n(sketch.as<float>(), shape.num_cells(), 0.0F);
  kernel.insert_sum(shape, scratch_.hash(shape, tagc_seed(context)), flags, marks, residual.as<float>(),
                    sketch.as<float>());
  if (index_bits_ == 1) {
    std::copy_n(marks, shape.index_words(), index.as<uint64_t>());
  } else {
    bits_to_counts(marks, 64 * shape.index_words(), index.as<uint8_t>());
  }
  return {.encoded_elements = shape.num_elements,
          .kept_elements = selection.kept_elements,
          .non_finite_blocks = selection.non_finite_blocks};
}

CodecCounts TagcFlat::decode(ConstBuffer merged_index, Buffer summed_sketch, Buffer out, PacketContext context) {
  const TagcShape shape = settings_.shape(out.num_elements);
  ISTHMUS_CHECK(Error, out.dtype == DataType::kFloat32, "flat tagc decodes to float32, not ", to_string(out.dtype));
  ISTHMUS_CHECK(
      Error, merged_index.bytes() == index_bytes(out.num_elements) && summed_sketch.num_elements == shape.num_cells(),
      "flat tagc: index of ", merged_index.bytes(), " bytes and sketch of ", summed_sketch.num_elements,
      " cells, where a shard of ", out.num_elements, " elements has ", index_bytes(out.num_elements), " and ",
      shape.num_cells());
  uint64_t* marks = grow(scratch_.index, shape.index_words());
  if (index_bits_ == 1) {
    std::copy_n(merged_index.as<uint64_t>(), shape.index_words(), marks);
  } else {
    counts_to_bits(merged_index.as<uint8_t>(), 64 * shape.index_words(), marks);
  }
  clear_padding(shape, marks);
  const kernels::BlockRows* rows = scratch_.hash(shape, tagc_seed(context));
  const kernels::PeelScratch peel = scratch_.peel(shape, marks, nullptr);
  std::fill_n(out.as<float>(), shape.num_elements, 0.0F);
  const kernels::TagcKernels& kernel = kernels::tagc_kernels();
  const kernels::PeelResult peeled =
      kernel.peel_sum(shape, rows, settings_.limits.peel_rounds, peel, scratch_.values(shape, peel),
                      summed_sketch.as<float>(), out.as<float>());
  if (peeled.left_elements > 0) {
    kernel.estimate(shape, rows, peel.remaining, summed_sketch.as<float>(), out.as<float>());
  }
  return {.estimated_elements = peeled.left_elements};
}

}  // namespace isthmus
