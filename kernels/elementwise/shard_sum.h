// The parts of a decoding before and after packets are added to a sum in memory.
#pragma once

#include "kernels/block/packet_passes.h"
#include "kernels/elementwise/sequence.h"
#include "kernels/elementwise/shard_values.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr int kSumAtOnce = 8;  // elements of a thread

// sum = own, or zeros, by the threads of a pass that has other work too. Reads the own piece once and writes the sum
// once.
template <typename Group>
ISTHMUS_DEVICE void begin_sum_beside(const Group& group, const DecodeJobBase& job) {
  if (job.own.data == job.sum.data) {
    return;
  }
  for_each_of_all(group, divide_up(job.sum.num_elements, kSumAtOnce), [&](int64_t i) {
    store_scaled_values<kSumAtOnce>(load_values<kSumAtOnce>(job.own, kSumAtOnce * i), 1, job.sum, kSumAtOnce * i);
  });
}

// sum = own. Reads the own piece once and writes the sum once.
template <typename Executor>
void begin_sum(Executor& executor, const DecodeJobBase& job) {
  if (job.own.data != job.sum.data) {
    convert(executor, job.own, job.sum);
  }
}

// out = scale * sum. Reads the sum once and writes the result once, or does nothing if that changes nothing.
template <typename Executor>
void end_sum(Executor& executor, const DecodeJobBase& job) {
  if (job.out.data != job.sum.data || job.scale != 1) {
    convert_scaled(executor, job.sum, job.scale, job.out);
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
