// The passes of one encoding and one decoding of weight differences, in order; kernels/block/passes.h says what an
// executor is. For an unchanged shard encoding reads it and the replica once.
#pragma once

#include "kernels/block/passes.h"
#include "kernels/weights/decode_passes.h"
#include "kernels/weights/encode_passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline int64_t at_least_one(int64_t groups) { return groups < 1 ? 1 : groups; }

template <typename Executor>
void run_passes(Executor& executor, const WeightEncodeJob& job) {
  if (job.before.data == nullptr) {
    executor.run(WriteWeightHeader{job}, 1);
    return;
  }
  const WeightShape shape = weight_shape(job.shard);
  if (job.replica.data != nullptr) {
    const int64_t num_words = job.replica.bytes() / kChecksumWordBytes;
    executor.run(ChecksumReplica{job, num_words}, checksum_groups_of_words(num_words));
  }
  with_weight_format(job.shard.dtype, [&]<typename Format>(Format) {
    executor.run(CompareWeights<Format>{job, shape}, at_least_one(shape.num_blocks()));
    executor.run(CodeWeights<Format>{job, shape}, kIsCoded<Format> ? at_least_one(shape.num_blocks()) : 1);
    executor.run(PlaceWeights<Format>{job, shape}, at_least_one(shape.num_blocks()));
    executor.run(SealWeights{job}, checksum_groups_of_words(job.most_bytes / kChecksumWordBytes));
  });
}

template <typename Executor>
void run_passes(Executor& executor, const WeightDecodeJob& job) {
  const WeightShape shape = weight_shape(job.shard);
  executor.run(BeginDecodingWeights{job}, 1);
  with_weight_format(job.shard.dtype, [&]<typename Format>(Format) {
    executor.run(VerifyWeights<Format>{job, shape}, checksum_groups_of_words(job.row_bytes / kChecksumWordBytes));
    executor.run(DecodeWeights<Format>{job, shape}, at_least_one(job.num_nodes * shape.num_blocks()));
  });
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
