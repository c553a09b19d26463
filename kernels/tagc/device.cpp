#include "kernels/tagc/device.h"

#include <cstdint>

#include "codec/packet_sizes.h"
#include "isthmus/error.h"

namespace isthmus {

namespace {

using kernels::TagcDecodeJob;
using kernels::TagcEncodeJob;
using kernels::TagcShape;

}  // namespace

kernels::SlabScratch carve_slabs(Carver& carver, const TagcShape& shape, int64_t num_keys, int64_t num_tables) {
  const int64_t slabs = kernels::num_slabs(shape);
  kernels::SlabScratch scratch = {};
  scratch.keys = carver.take<uint32_t>(num_keys * slabs * kernels::slab_words(shape));
  scratch.left = carver.take<uint32_t>(slabs);
  if (!kernels::tables_fit_shared(shape)) {
    scratch.tables = carver.take<uint32_t>(num_tables * slabs * kernels::table_words(shape));
  }
  carver.align();
  return scratch;
}

// Fills in what jobs of encoding and of decoding share.
template <typename Job>
Job TagcMaker::plan(int64_t num_elements, PacketContext context) const {
  Job job = {};
  job.shape = settings_.shape(num_elements);
  job.layout = tagc_layout(job.shape);
  job.packet_bytes = job.layout.end;
  job.header = header_words(make_tagc_header(job.shape, settings_.limits.peel_rounds, context));
  job.max_rounds = settings_.limits.peel_rounds;
  return job;
}

TagcEncodeJob TagcMaker::plan_encode(int64_t num_elements, PacketContext context) const {
  ISTHMUS_CHECK(Error, num_elements <= kernels::kMaxDeviceElements, "codec tagc on a device encodes pieces of up to ",
                kernels::kMaxDeviceElements, " elements, not ", num_elements);
  auto job = plan<TagcEncodeJob>(num_elements, context);
  job.keep = static_cast<uint32_t>(settings_.keep(num_elements));
  const kernels::TagcSample sample(job.shape, job.keep, kernels::kMaxSampleRuns);
  job.sample_runs = static_cast<uint32_t>(sample.runs);
  job.sample_keep = static_cast<uint32_t>(sample.keep);
  return job;
}

TagcDecodeJob TagcMaker::plan_decode(int64_t num_elements, PacketContext context) const {
  return plan<TagcDecodeJob>(num_elements, context);
}

void TagcMaker::carve(Carver& carver, TagcEncodeJob& job) {
  carver.align();
  job.state = carver.take<kernels::SelectState>(1);
  carver.align();
  job.rows = carver.take<uint32_t>(4 * job.shape.num_blocks);
  job.tie_counts = carver.take<uint32_t>(job.shape.num_blocks);
  carver.align();
  job.slabs = carve_slabs(carver, job.shape, 1, 1);
}

void TagcMaker::carve(Carver& carver, TagcDecodeJob& job) {
  const int64_t at_once = job.to_places ? job.num_packets : 1;
  job.found = carver.take<uint32_t>(job.num_places());
  carver.align();
  job.rows = carver.take<uint32_t>(4 * job.shape.num_blocks);
  carver.align();
  job.cells = carver.take<uint32_t>(at_once * job.shape.num_cells());
  carver.align();
  job.slabs = carve_slabs(carver, job.shape, job.num_places(), at_once);
  if (job.sum.num_elements > 0) {
    carver.align();
    job.sum.data = carver.take<float>(job.sum.num_elements);
  }
}

}  // namespace isthmus
