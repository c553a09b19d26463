#include "codec/device_jobs.h"
#include "kernels/tagc/flat.h"

namespace isthmus {

// The elements are chosen as between nodes, in an image of a packet that ends where its sketch would begin.
kernels::TagcFlatEncodeJob TagcFlatOnDevice::plan_encode(int64_t chunk_elements, PacketContext context, void* scratch,
                                                         int64_t& scratch_bytes) const {
  kernels::TagcFlatEncodeJob job = {choosing_.plan_encode(chunk_elements, context)};
  job.packet_bytes = job.layout.end = job.layout.sketch;
  Carver carver(scratch);
  job.packet = carver.take<uint8_t>(job.layout.end);
  carve_shared(carver, job);
  TagcMaker::carve(carver, job);
  carver.align();
  scratch_bytes = carver.bytes();
  return job;
}

kernels::TagcFlatDecodeJob TagcFlatOnDevice::plan_decode(int64_t shard_elements, void* scratch,
                                                         int64_t& scratch_bytes) const {
  kernels::TagcFlatDecodeJob job = {};
  job.shape = settings_.shape(shard_elements);
  job.max_rounds = settings_.limits.peel_rounds;
  Carver carver(scratch);
  job.rows = carver.take<uint32_t>(4 * job.shape.num_blocks);
  carver.align();
  job.slabs = carve_slabs(carver, job.shape, 1, 1);
  job.keys_before = carver.take<uint32_t>(kernels::num_slabs(job.shape) * kernels::slab_words(job.shape));
  scratch_bytes = carver.bytes();
  return job;
}

int64_t TagcFlatOnDevice::encode_scratch_bytes(const FlatChunks& chunks) const {
  int64_t bytes = 0;
  plan_encode(chunks.chunk_elements(), {}, nullptr, bytes);
  return chunks.num_chunks * bytes;
}

int64_t TagcFlatOnDevice::decode_scratch_bytes(int64_t shard_elements) const {
  int64_t bytes = 0;
  plan_decode(shard_elements, nullptr, bytes);
  return bytes;
}

CodecCounts TagcFlatOnDevice::encode(const FlatChunks& chunks, PacketContext context, Workspace workspace) {
  check(chunks);
  const int64_t elements = chunks.chunk_elements();
  if (elements == 0) {
    return {};
  }
  int64_t scratch_bytes = 0;
  kernels::TagcFlatEncodeJob job = plan_encode(elements, context, workspace.scratch.data, scratch_bytes);
  check_device_memory("flat tagc", "indexes", chunks.indexes, chunks.indexes.bytes(), 64);
  check_device_memory("flat tagc", "sketches", chunks.sketches, chunks.sketches.bytes(), 64);
  check_device_memory("flat tagc", "scratch memory", workspace.scratch, chunks.num_chunks * scratch_bytes, 64);
  job.piece = chunks.gradient.part(0, elements);
  job.residual = chunks.residuals.as<float>();
  job.counts = device_.counts;
  job.magnitudes = context.magnitudes;
  job.num_pieces = job.left_out = chunks.num_chunks;
  job.steps = {.piece_bytes = job.piece.bytes(),
               .residual_elements = elements,
               .packet_bytes = scratch_bytes,
               .scratch_bytes = scratch_bytes};
  job.wire_index = chunks.indexes.as<uint32_t>();
  job.cells = chunks.sketches.as<float>();
  device_.launcher.run(job, workspace.stream);
  return {.encoded_elements = chunks.gradient.num_elements};
}

void TagcFlatOnDevice::merge(ConstBuffer arrived, Buffer index, Stream stream) {
  device_.launcher.run(
      kernels::TagcFlatMergeJob{
          .arrived = arrived.as<uint64_t>(), .index = index.as<uint64_t>(), .num_words = index.bytes() / 8},
      stream);
}

CodecCounts TagcFlatOnDevice::decode(ConstBuffer merged_index, Buffer summed_sketch, Buffer out, PacketContext context,
                                     Workspace workspace) {
  check(merged_index, summed_sketch, out);
  if (out.num_elements == 0) {
    return {};
  }
  int64_t scratch_bytes = 0;
  kernels::TagcFlatDecodeJob job = plan_decode(out.num_elements, workspace.scratch.data, scratch_bytes);
  check_device_memory("flat tagc", "scratch memory", workspace.scratch, scratch_bytes, 64);
  job.context = {context.unit_hash, context.step};
  job.wire_index = merged_index.as<uint32_t>();
  job.cells = summed_sketch.as<float>();
  job.out = out.as<float>();
  job.counts = device_.counts;
  device_.launcher.run(job, workspace.stream);
  return {};
}

}  // namespace isthmus
