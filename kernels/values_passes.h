// Arithmetic on whole buffers, and the counts of a step, on many groups: what buffer.h has for the CPU.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "kernels/float_types.h"
#include "kernels/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr int64_t kAccessBytes = 16;  // the most that a thread loads or stores at once

// Neighbours that are loaded and stored together: one access on the side whose elements are smaller, several on the
// other.
template <typename T, int64_t kValues>
struct alignas(kAccessBytes) Neighbours {
  T value[kValues];
};

// out[i] = in[i], converted; or in[i] * scale, as scaled(). The two may be the same memory and type.
template <typename In, typename Out>
struct ConvertValues {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;
  static constexpr int64_t kNeighbours = kAccessBytes / (sizeof(In) < sizeof(Out) ? sizeof(In) : sizeof(Out));

  const In* in;
  Out* out;
  int64_t num_elements;
  int64_t num_runs;  // of kNeighbours elements from the first on, which begin at multiples of kAccessBytes
  bool is_scaled;
  double scale;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    for_each_of_all(group, num_runs, [&](int64_t run) {
      const auto loaded = reinterpret_cast<const Neighbours<In, kNeighbours>*>(in)[run];
      Neighbours<Out, kNeighbours> result;
      for (int64_t i = 0; i < kNeighbours; ++i) {
        result.value[i] = converted(loaded.value[i]);
      }
      reinterpret_cast<Neighbours<Out, kNeighbours>*>(out)[run] = result;
    });
    const int64_t rest = num_runs * kNeighbours;
    for_each_of_all(group, num_elements - rest, [&](int64_t i) { out[rest + i] = converted(in[rest + i]); });
  }

 private:
  ISTHMUS_DEVICE Out converted(In value) const {
    return is_scaled ? scaled<Out>(value, scale) : narrow<Out>(widen(value));
  }
};

// values[i] *= factor. What is too large for float32 becomes the largest that is not.
struct MultiplyValues {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  float* values;
  int64_t num_elements;
  double factor;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    for_each_of_all(group, num_elements, [&](int64_t i) { values[i] = limited_to_float32(values[i] * factor); });
  }
};

// The end of a step: what was kept since the last one is skipped if the step's result was thrown away. One thread.
struct EndStep {
  static constexpr int kThreads = 32;
  static constexpr int64_t kMaxSharedBytes = 0;

  DeviceCounts* counts;
  bool is_skipped;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() != 0 || group.thread() != 0) {
      return;
    }
    counts->skipped_elements += is_skipped ? counts->kept_elements - counts->kept_before_step : 0;
    counts->kept_before_step = counts->kept_elements;
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
