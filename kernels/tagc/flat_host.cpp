#include <algorithm>

#include "kernels/tagc/flat.h"
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
  const TagcShape shape = settings_.shape(elements);
  const kernels::BlockRows* rows = scratch_.hash(shape, context);
  uint64_t* flags = grow(scratch_.flags, shape.flag_words());
  CodecCounts counts;
  for (int i = 0; i < chunks.num_chunks; ++i) {
    ConstBuffer chunk = chunks.gradient.part(i, elements);
    if (chunk.dtype != DataType::kFloat32) {
      const Buffer widened = {grow(widened_, elements), elements, DataType::kFloat32};
      convert(chunk, widened);
      chunk = widened;
    }
    const Buffer residual = chunks.residuals.part(i, elements);
    auto* index = chunks.indexes.part(i, index_bytes(elements)).as<uint64_t>();
    auto* sketch = chunks.sketches.part(i, shape.num_cells()).as<float>();
    const kernels::Selection selection =
        scratch_.select(shape, settings_.keep(elements), chunk, residual, flags, index, context);
    std::fill_n(sketch, shape.num_cells(), 0.0F);
    kernels::tagc_kernels().insert_sum(shape, rows, flags, index, residual.as<float>(), sketch);
    counts += {.encoded_elements = elements,
               .kept_elements = selection.kept_elements,
               .non_finite_blocks = selection.non_finite_blocks};
  }
  return counts;
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
  const kernels::BlockRows* rows = scratch_.hash(shape, context);
  const kernels::PeelScratch peel = scratch_.peel(shape, marks, nullptr);
  std::fill_n(out.as<float>(), shape.num_elements, 0.0F);
  const kernels::TagcKernels& kernel = kernels::tagc_kernels();
  const kernels::PeelResult peeled =
      kernel.peel_sum(shape, rows, settings_.limits.peel_rounds, peel, summed_sketch.as<float>(), out.as<float>());
  if (peeled.left_elements > 0) {
    kernel.estimate(shape, rows, peel.remaining, summed_sketch.as<float>(), out.as<float>());
  }
  return {.estimated_elements = peeled.left_elements};
}

}  // namespace isthmus
