// The single-tier baseline (tiers=flat). See docs/algorithms.md, "Single tier".
#include "codec/tagc_flat.h"
#include "communicator_step.h"
#include "isthmus/communicator.h"
#include "scratch.h"
#include "unit_table.h"

namespace isthmus {

void Communicator::reduce_scatter_flat(ConstBuffer gradient, Buffer shard, double scale, const Reduction& reduction,
                                       Stream stream) {
  const Buffer sum = reduction.unit != nullptr ? sum_tagc(gradient, reduction, sum_target(shard), stream)
                                               : sum_plainly(gradient, stream);
  convert_scaled(sum, scale, shard);
}

Buffer Communicator::sum_plainly(ConstBuffer gradient, Stream stream) {
  const Buffer sum = scratch_->take(gradient.num_elements / map_.world_size(), accumulate_dtype(gradient.dtype));
  const Step step(*this, "flat reduce-scatter", &CollectiveStats::exchange_s);
  if (map_.world_size() == 1) {
    convert(gradient, sum);
  } else {
    tiers_.flat->reduce_scatter(gradient, sum, stream)->wait(stream);
  }
  return sum;
}

// The paper's algorithm: supports are merged by collectives over all ranks, and the owner decodes the sum.
Buffer Communicator::sum_tagc(ConstBuffer gradient, const Reduction& reduction, Buffer sum, Stream stream) {
  const int64_t chunk_elements = gradient.num_elements / map_.world_size();
  const int64_t index_bytes = tagc_flat_->index_bytes(chunk_elements);
  const int64_t sketch_elements = tagc_flat_->sketch_elements(chunk_elements);
  const Buffer indexes = scratch_->take(map_.world_size() * index_bytes, DataType::kByte);
  const Buffer sketches = scratch_->take(map_.world_size() * sketch_elements, DataType::kFloat32);
  const Buffer summed_sketch = scratch_->take(sketch_elements, DataType::kFloat32);
  {
    const Step step(*this, "encode", &CollectiveStats::encode_s);
    const Buffer chunk32 = scratch_->take(chunk_elements, DataType::kFloat32);
    for (int owner = 0; owner < map_.world_size(); ++owner) {
      ConstBuffer chunk = gradient.part(owner, chunk_elements);
      if (chunk.dtype != DataType::kFloat32) {
        convert(chunk, chunk32);
        chunk = chunk32;
      }
      current_codec_ += tagc_flat_->encode(chunk, reduction.unit->residual.part(owner, chunk_elements),
                                           indexes.part(owner, index_bytes), sketches.part(owner, sketch_elements),
                                           reduction.context);
    }
  }
  {
    const Step step(*this, "flat index all-reduce", &CollectiveStats::exchange_s);
    tiers_.flat->all_reduce(indexes, tagc_flat_->index_op(), stream)->wait(stream);
  }
  {
    const Step step(*this, "flat sketch reduce-scatter", &CollectiveStats::exchange_s);
    tiers_.flat->reduce_scatter(sketches, summed_sketch, stream)->wait(stream);
  }
  const Step step(*this, "decode", &CollectiveStats::decode_s);
  current_codec_ += tagc_flat_->decode(indexes.part(rank_, index_bytes), summed_sketch, sum, reduction.context);
  return sum;
}

}  // namespace isthmus
