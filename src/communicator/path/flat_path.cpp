#include "communicator/path/flat_path.h"

#include "kernels/tagc/flat.h"

namespace isthmus {

void FlatPath::reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const {
  if (tiers_.world_size() > 1) {
    const Step step(run, Phase::kFlatReduceScatter, Lane::kInter, &CollectiveStats::exchange_s);
    tell_unit(run, plan, tiers_.flat())->wait(run.tail());
    refuse_other_units(run, plan, {}, 0);
  }
  if (plan.codecs.flat != nullptr) {
    const bool fits = shard.dtype == DataType::kFloat32;
    const Buffer sum = fits ? shard : run.take(shard.num_elements, DataType::kFloat32);
    sum_tagc(run, plan, gradient, sum);
    device_.convert_scaled(sum, plan.scale, shard, run.tail());
    return;
  }
  const SumType type = sum_type(gradient.dtype);
  const Buffer sum = run.take(shard.num_elements, type.dtype);
  sum_plainly(run, gradient, sum);
  run.enter(Lane::kDecode);
  device_.convert_scaled(sum, plan.scale * type.divisor, shard, run.tail());
}

// A group of one rank has no flat tier.
SumType FlatPath::sum_type(DataType dtype) const {
  return tiers_.world_size() == 1 ? SumType{accumulate_dtype(dtype)} : tiers_.flat().sum_type(dtype);
}

void FlatPath::sum_plainly(Run& run, ConstBuffer gradient, Buffer sum) const {
  const Step step(run, Phase::kFlatReduceScatter, Lane::kInter, &CollectiveStats::exchange_s);
  if (tiers_.world_size() == 1) {
    device_.convert(gradient, sum, run.tail());
  } else {
    tiers_.flat().reduce_scatter(gradient, sum, run.tail())->wait(run.tail());
  }
}

// The paper's algorithm: supports are merged by collectives over all ranks, and the owner decodes the sum.
void FlatPath::sum_tagc(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer sum) const {
  TagcFlat& tagc_flat = *plan.codecs.flat;
  const int num_ranks = tiers_.world_size();
  const int64_t index_bytes = tagc_flat.index_bytes(sum.num_elements);
  const int64_t sketch_elements = tagc_flat.sketch_elements(sum.num_elements);
  PacketContext context = {plan.hash, plan.step};
  context.magnitudes = plan.unit->pieces.magnitudes.get();
  const FlatChunks chunks = {.num_chunks = num_ranks,
                             .gradient = gradient,
                             .residuals = plan.unit->pieces.values,
                             .indexes = run.take(num_ranks * index_bytes, DataType::kByte),
                             .sketches = run.take(num_ranks * sketch_elements, DataType::kFloat32)};
  const Buffer summed_sketch = run.take(sketch_elements, DataType::kFloat32);
  {
    const Step step(run, Phase::kEncode, Lane::kEncode, &CollectiveStats::encode_s);
    run.codec_counts += tagc_flat.encode(chunks, context, run.workspace(tagc_flat.encode_scratch_bytes(chunks)));
    coder_.end_step(run, plan, plan.unit->pieces);
  }
  merge_indexes(run, tagc_flat, chunks.indexes);
  {
    const Step step(run, Phase::kFlatSketch, Lane::kInter, &CollectiveStats::exchange_s);
    tiers_.flat().reduce_scatter(chunks.sketches, summed_sketch, run.tail())->wait(run.tail());
  }
  const Step step(run, Phase::kDecode, Lane::kDecode, &CollectiveStats::decode_s);
  run.codec_counts += tagc_flat.decode(chunks.indexes.part(tiers_.rank(), index_bytes), summed_sketch, sum, context,
                                       run.workspace(tagc_flat.decode_scratch_bytes(sum.num_elements)));
}

// The paper's all-reduce. It is spelled out because NCCL has no bitwise or: part p begins at rank p + 1, and collects
// every rank's marks on its way around the ring to rank p; then all parts are gathered.
void FlatPath::merge_indexes(Run& run, TagcFlat& tagc_flat, Buffer indexes) const {
  const Step step(run, Phase::kFlatIndex, Lane::kInter, &CollectiveStats::exchange_s);
  const int num_ranks = tiers_.world_size();
  const int64_t index_bytes = indexes.num_elements / num_ranks;
  const auto part = [&](int distance) {
    return indexes.part((tiers_.rank() + num_ranks - distance) % num_ranks, index_bytes);
  };
  const Buffer arrived = run.take(index_bytes, DataType::kByte);
  for (int distance = 1; distance < num_ranks; ++distance) {
    tiers_.flat().pass_on(part(distance), arrived, run.tail())->wait(run.tail());
    tagc_flat.merge(arrived, part(distance + 1), run.tail());
  }
  tiers_.flat().all_gather(part(0), indexes, run.tail())->wait(run.tail());
}

}  // namespace isthmus
