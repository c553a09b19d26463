// The passes of each operation on buffers; kernels/block/passes.h says what an executor is. Callers have checked types
// and sizes. Buffers of bytes are left alone: there is no arithmetic on them.
#pragma once

#include <algorithm>

#include "isthmus/buffer.h"
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

// The two have equally many elements of floating types.
template <typename Executor>
void convert(Executor& executor, ConstBuffer in, Buffer out) {
  with_floating_type(in.dtype, [&]<typename In>(In) {
    with_floating_type(out.dtype, [&]<typename Out>(Out) { map_values<In, Out>(executor, in, out, Converted<Out>{}); });
  });
}

template <typename Executor>
void convert_scaled(Executor& executor, ConstBuffer in, double scale, Buffer out) {
  with_floating_type(in.dtype, [&]<typename In>(In) {
    with_floating_type(out.dtype,
                       [&]<typename Out>(Out) { map_values<In, Out>(executor, in, out, Scaled<Out>{scale}); });
  });
}

// Both float32.
template <typename Executor>
void add(Executor& executor, ConstBuffer values, Buffer sums) {
  map_values<float, float>(executor, values, sums, Added{});
}

// values: float32.
template <typename Executor>
void multiply(Executor& executor, Buffer values, double factor) {
  map_values<float, float>(executor, values, values, Multiplied{factor});
}

template <typename Executor>
void add_squared_error(Executor& executor, const SquaredErrorJob& job) {
  if (job.num_elements > 0) {
    const int64_t num_runs = runs_of(job.num_elements, kFloatsAtOnce, job.given, job.decoded);
    const int64_t turns = std::max(num_runs, job.num_elements - num_runs * kFloatsAtOnce);
    const int64_t num_parts = std::min(divide_up(turns, kPassThreads), kSquaredErrorParts);
    executor.run(SumSquares{job, num_parts, num_runs}, num_parts);
    executor.run(AddSquaredError{job, num_parts}, 1);
  }
}

// residual: float32.
template <typename Executor>
void drop_residual_after_spike(Executor& executor, Magnitudes* magnitudes, Buffer residual, DeviceCounts* counts) {
  const int64_t groups = std::min(divide_up(residual.num_elements, kPassThreads), DropResidualAfterSpike::kMaxGroups);
  executor.run(DropResidualAfterSpike{magnitudes, residual.as<float>(), residual.num_elements, counts}, groups);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
