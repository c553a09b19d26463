// The passes of work on buffers; kernels/block/passes.h says what an executor is. Whoever makes jobs has checked types
// and sizes. Buffers of bytes are left alone: there is no arithmetic on them.
#pragma once

#include <algorithm>

#include "kernels/elementwise/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// How many runs of `neighbours` elements may be loaded and stored at once, where both buffers begin alike.
inline int64_t runs_of(int64_t num_elements, int64_t neighbours, const void* a, const void* b) {
  return is_aligned(a, kAccessBytes) && is_aligned(b, kAccessBytes) ? num_elements / neighbours : 0;
}

template <typename In, typename Out, typename Executor, typename Map>
void map_values(Executor& executor, ConstBuffer in, Buffer out, const Map& map) {
  using Pass = MapValues<In, Out, Map>;
  if (in.num_elements > 0) {
    const int64_t num_runs = runs_of(in.num_elements, Pass::kNeighbours, in.data, out.data);
    const int64_t turns = std::max(num_runs, in.num_elements - num_runs * Pass::kNeighbours);
    executor.run(Pass{in.as<In>(), out.as<Out>(), in.num_elements, num_runs, map}, divide_up(turns, kPassThreads));
  }
}

template <typename Executor>
void run_passes(Executor& executor, const ConvertJob& job) {
  with_floating_type(job.in.dtype, [&]<typename In>(In) {
    with_floating_type(job.out.dtype, [&]<typename Out>(Out) {
      if (job.scale == 1) {
        map_values<In, Out>(executor, job.in, job.out, Converted<Out>{});
      } else {
        map_values<In, Out>(executor, job.in, job.out, Scaled<Out>{job.scale});
      }
    });
  });
}

template <typename Executor>
void run_passes(Executor& executor, const MultiplyJob& job) {
  map_values<float, float>(executor, job.values, job.values, Multiplied{job.factor});
}

template <typename Executor>
void run_passes(Executor& executor, const AddJob& job) {
  map_values<float, float>(executor, job.values, job.sum, Added{});
}

template <typename Executor>
void run_passes(Executor& executor, const SquaredErrorJob& job) {
  if (job.num_elements > 0) {
    const int64_t num_runs = runs_of(job.num_elements, kFloatsAtOnce, job.given, job.decoded);
    const int64_t turns = std::max(num_runs, job.num_elements - num_runs * kFloatsAtOnce);
    const int64_t num_parts = std::min(divide_up(turns, kPassThreads), kSquaredErrorParts);
    executor.run(SumSquares{job, num_parts, num_runs}, num_parts);
    executor.run(AddSquaredError{job, num_parts}, 1);
  }
}

template <typename Executor>
void run_passes(Executor& executor, const DropResidualJob& job) {
  const int64_t groups = divide_up(job.residual.num_elements, kPassThreads);
  executor.run(DropResidualAfterSpike{job}, std::min(groups, DropResidualAfterSpike::kMaxGroups));
}

template <typename Executor>
void run_passes(Executor& executor, const SetContextsJob& job) {
  executor.run(SetContexts{job}, 1);
}

template <typename Executor>
void run_passes(Executor& executor, const NextStepJob& job) {
  executor.run(NextStep{job}, 1);
}

template <typename Executor>
void run_passes(Executor& executor, const RefuseUnitsJob& job) {
  executor.run(RefuseOtherUnits{job}, 1);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
