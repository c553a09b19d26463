#include "communicator/path/flat_path.h"

#include "codec/tagc/flat.h"

namespace isthmus {

void FlatPath::reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const {
  const Buffer sum = plan.tagc_flat != nullptr ? sum_tagc(run, plan, gradient, shard) : sum_plainly(run, gradient);
  convert_scaled(sum, plan.scale, shard);
}

Buffer FlatPath::sum_plainly(Run& run, ConstBuffer gradient) const {
  const Buffer sum = run.take(gradient.num_elements / tiers_.world_size(), accumulate_dtype(gradient.dtype));
  const Step step(run, "flat reduce-scatter", Lane::kInter, &CollectiveStats::exchange_s);
  if (tiers_.world_size() == 1) {
    convert(gradient, sum);
  } else {
    tiers_.flat().reduce_scatter(gradient, sum, run.tail())->wait(run.tail());
  }
  return sum;
}

// The paper's algorithm: supports are merged by collectives over all ranks, and the owner decodes the sum.
Buffer FlatPath::sum_tagc(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const {
  TagcFlat& tagc_flat = *plan.tagc_flat;
  const int num_ranks = tiers_.world_size();
  const int64_t chunk_elements = gradient.num_elements / num_ranks;
  const int64_t index_bytes = tagc_flat.index_bytes(chunk_elements);
  const int64_t sketch_elements = tagc_flat.sketch_elements(chunk_elements);
  PacketContext context = {plan.hash, plan.step};
  context.guard = plan.unit->pieces.guard.get();
  const Buffer indexes = run.take(num_ranks * index_bytes, DataType::kByte);
  const Buffer sketches = run.take(num_ranks * sketch_elements, DataType::kFloat32);
  const Buffer summed_sketch = run.take(sketch_elements, DataType::kFloat32);
  {
    const Step step(run, "encode", Lane::kEncode, &CollectiveStats::encode_s);
    const Buffer chunk32 = run.take(chunk_elements, DataType::kFloat32);
    for (int owner = 0; owner < num_ranks; ++owner) {
      ConstBuffer chunk = gradient.part(owner, chunk_elements);
      if (chunk.dtype != DataType::kFloat32) {
        convert(chunk, chunk32);
        chunk = chunk32;
      }
      run.codec_counts +=
          tagc_flat.encode(chunk, plan.unit->pieces.values.part(owner, chunk_elements),
                           indexes.part(owner, index_bytes), sketches.part(owner, sketch_elements), context);
    }
    coder_.guard(run, plan, plan.unit->pieces);
  }
  {
    const Step step(run, "flat index all-reduce", Lane::kInter, &CollectiveStats::exchange_s);
    tiers_.flat().all_reduce(indexes, tagc_flat.index_op(), run.tail())->wait(run.tail());
  }
  {
    const Step step(run, "flat sketch reduce-scatter", Lane::kInter, &CollectiveStats::exchange_s);
    tiers_.flat().reduce_scatter(sketches, summed_sketch, run.tail())->wait(run.tail());
  }
  const Step step(run, "decode", Lane::kDecode, &CollectiveStats::decode_s);
  const Buffer sum = shard.dtype == DataType::kFloat32 ? shard : run.take(chunk_elements, DataType::kFloat32);
  run.codec_counts += tagc_flat.decode(indexes.part(tiers_.rank(), index_bytes), summed_sketch, sum, context);
  return sum;
}

}  // namespace isthmus
