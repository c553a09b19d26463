// The single-tier baseline (tiers=flat), on the CPU alone. See docs/algorithms.md, "Single tier".
#include "codec/tagc/flat.h"

#include "communicator/scratch.h"
#include "communicator/step.h"
#include "communicator/units/unit_table.h"
#include "isthmus/communicator.h"

namespace isthmus {

void Communicator::reduce_scatter_flat(ConstBuffer gradient, Buffer shard, const Reduction& reduction) {
  const Buffer sum =
      reduction.tagc_flat != nullptr ? sum_tagc(gradient, reduction, sum_target(shard)) : sum_plainly(gradient);
  convert_scaled(sum, reduction.scale, shard);
}

Buffer Communicator::sum_plainly(ConstBuffer gradient) {
  const Buffer sum = take_scratch(gradient.num_elements / map_.world_size(), accumulate_dtype(gradient.dtype));
  const Step step(*this, "flat reduce-scatter", Lane::kInter, &CollectiveStats::exchange_s);
  if (map_.world_size() == 1) {
    convert(gradient, sum);
  } else {
    tiers_.flat->reduce_scatter(gradient, sum, here_)->wait(here_);
  }
  return sum;
}

// The paper's algorithm: supports are merged by collectives over all ranks, and the owner decodes the sum.
Buffer Communicator::sum_tagc(ConstBuffer gradient, const Reduction& reduction, Buffer sum) {
  TagcFlat& tagc_flat = *reduction.tagc_flat;
  const int64_t chunk_elements = gradient.num_elements / map_.world_size();
  const int64_t index_bytes = tagc_flat.index_bytes(chunk_elements);
  const int64_t sketch_elements = tagc_flat.sketch_elements(chunk_elements);
  const PacketContext context = {reduction.hash, reduction.step};
  const Buffer indexes = take_scratch(map_.world_size() * index_bytes, DataType::kByte);
  const Buffer sketches = take_scratch(map_.world_size() * sketch_elements, DataType::kFloat32);
  const Buffer summed_sketch = take_scratch(sketch_elements, DataType::kFloat32);
  {
    const Step step(*this, "encode", Lane::kEncode, &CollectiveStats::encode_s);
    const Buffer chunk32 = take_scratch(chunk_elements, DataType::kFloat32);
    for (int owner = 0; owner < map_.world_size(); ++owner) {
      ConstBuffer chunk = gradient.part(owner, chunk_elements);
      if (chunk.dtype != DataType::kFloat32) {
        convert(chunk, chunk32);
        chunk = chunk32;
      }
      current_codec_ +=
          tagc_flat.encode(chunk, reduction.unit->residual.part(owner, chunk_elements),
                           indexes.part(owner, index_bytes), sketches.part(owner, sketch_elements), context);
    }
  }
  {
    const Step step(*this, "flat index all-reduce", Lane::kInter, &CollectiveStats::exchange_s);
    tiers_.flat->all_reduce(indexes, tagc_flat.index_op(), here_)->wait(here_);
  }
  {
    const Step step(*this, "flat sketch reduce-scatter", Lane::kInter, &CollectiveStats::exchange_s);
    tiers_.flat->reduce_scatter(sketches, summed_sketch, here_)->wait(here_);
  }
  const Step step(*this, "decode", Lane::kDecode, &CollectiveStats::decode_s);
  current_codec_ += tagc_flat.decode(indexes.part(rank_, index_bytes), summed_sketch, sum, context);
  return sum;
}

}  // namespace isthmus
