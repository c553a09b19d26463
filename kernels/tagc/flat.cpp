#include "kernels/tagc/flat.h"

#include "codec/gpu_device.h"
#include "isthmus/error.h"

namespace isthmus {

int64_t TagcFlat::index_bytes(int64_t shard_elements) const {
  return settings_.shape(shard_elements).index_words() * 8;
}

int64_t TagcFlat::sketch_elements(int64_t shard_elements) const { return settings_.shape(shard_elements).num_cells(); }

void TagcFlat::check(const FlatChunks& chunks) const {
  const int64_t elements = chunks.chunk_elements();
  ISTHMUS_CHECK(
      Error,
      accumulate_dtype(chunks.gradient.dtype) == DataType::kFloat32 && chunks.residuals.dtype == DataType::kFloat32,
      "flat tagc encodes float32 chunks, or 16-bit ones, with float32 residuals, not ",
      to_string(chunks.gradient.dtype), " with ", to_string(chunks.residuals.dtype));
  ISTHMUS_CHECK(Error,
                chunks.gradient.num_elements == elements * chunks.num_chunks &&
                    chunks.residuals.num_elements == chunks.gradient.num_elements,
                "flat tagc: residuals of ", chunks.residuals.num_elements, " elements for ", chunks.num_chunks,
                " chunks of ", chunks.gradient.num_elements, " elements together");
  ISTHMUS_CHECK(Error,
                chunks.indexes.bytes() == chunks.num_chunks * index_bytes(elements) &&
                    chunks.sketches.num_elements == chunks.num_chunks * sketch_elements(elements),
                "flat tagc: indexes of ", chunks.indexes.bytes(), " bytes and sketches of ",
                chunks.sketches.num_elements, " cells, where ", chunks.num_chunks, " chunks of ", elements,
                " elements have ", index_bytes(elements), " and ", sketch_elements(elements), " each");
}

void TagcFlat::check(ConstBuffer merged_index, ConstBuffer summed_sketch, ConstBuffer out) const {
  ISTHMUS_CHECK(Error, out.dtype == DataType::kFloat32, "flat tagc decodes to float32, not ", to_string(out.dtype));
  ISTHMUS_CHECK(Error,
                merged_index.bytes() == index_bytes(out.num_elements) &&
                    summed_sketch.num_elements == sketch_elements(out.num_elements),
                "flat tagc: index of ", merged_index.bytes(), " bytes and sketch of ", summed_sketch.num_elements,
                " cells, where a shard of ", out.num_elements, " elements has ", index_bytes(out.num_elements), " and ",
                sketch_elements(out.num_elements));
}

std::unique_ptr<TagcFlat> make_tagc_flat(const Options& options, Device& device) {
  if (device.is_host()) {
    return std::make_unique<TagcFlatOnHost>(options);
  }
  return std::make_unique<TagcFlatOnDevice>(options, dynamic_cast<GpuDevice&>(device).passes());
}

}  // namespace isthmus
