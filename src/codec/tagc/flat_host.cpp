#include <algorithm>

#include "codec/tagc/flat_executors.h"
#include "kernels/tagc/layout.h"

namespace isthmus {

namespace {

using kernels::TagcShape;

// Clears marks past the last element. Only damage sets them, and they must not lead to writes there.
void clear_padding(const TagcShape& shape, uint64_t* index) {
  const int64_t whole = shape.num_elements / 64;
  if (whole < shape.index_words()) {
    index[whole] &= (uint64_t{1} << (shape.num_elements % 64)) - 1;
    std::fill(index + whole + 1, index + shape.index_words(), 0);
  }
}

}  // namespace

CodecCounts TagcFlatOnHost::encode(const FlatChunks& chunks, PacketContext context, Workspace /*workspace*/) {
  check(chunks);
  const int64_t elements = chunks.chunk_elements();
  CodecCounts counts;
  for (int i = 0; i < chunks.num_chunks; ++i) {
    ConstBuffer chunk = chunks.gradient.part(i, elements);
    if (chunk.dtype != DataType::kFloat32) {
      const Buffer widened = {grow(widened_, elements), elements, DataType::kFloat32};
      convert(chunk, widened);
      chunk = widened;
    }
    counts += encode_chunk(chunk, chunks.residuals.part(i, elements), chunks.indexes.part(i, index_bytes(elements)),
                           chunks.sketches.part(i, sketch_elements(elements)), context);
  }
  return counts;
}

CodecCounts TagcFlatOnHost::encode_chunk(ConstBuffer chunk, Buffer residual, Buffer index, Buffer sketch,
                                         const PacketContext& context) {
  const TagcShape shape = settings_.shape(chunk.num_elements);
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
  std::copy_n(marks, shape.index_words(), index.as<uint64_t>());
  return {.encoded_elements = shape.num_elements,
          .kept_elements = selection.kept_elements,
          .non_finite_blocks = selection.non_finite_blocks};
}

void TagcFlatOnHost::merge(ConstBuffer arrived, Buffer index, Stream /*stream*/) {
  for (int64_t w = 0; w < index.bytes() / 8; ++w) {
    index.as<uint64_t>()[w] |= arrived.as<uint64_t>()[w];
  }
}

CodecCounts TagcFlatOnHost::decode(ConstBuffer merged_index, Buffer summed_sketch, Buffer out, PacketContext context,
                                   Workspace /*workspace*/) {
  check(merged_index, summed_sketch, out);
  const TagcShape shape = settings_.shape(out.num_elements);
  uint64_t* marks = grow(scratch_.index, shape.index_words());
  std::copy_n(merged_index.as<uint64_t>(), shape.index_words(), marks);
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
