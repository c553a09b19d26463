// Arithmetic on whole buffers, and guards of residuals, on many groups: what buffer.h and host.cpp have for the CPU.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/block/device.h"
#include "kernels/block/float_types.h"
#include "kernels/block/job.h"
#include "kernels/block/passes.h"
#include "kernels/block/residual_guard.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr int64_t kAccessBytes = 16;  // the most that a thread loads or stores at once

// Neighbours that are loaded and stored together: in one access on the side with the smaller elements, in several on
// the other.
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

  Moved moved() const {
    return {num_elements * static_cast<int64_t>(sizeof(In)), num_elements * static_cast<int64_t>(sizeof(Out))};
  }

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

// values[i] *= factor. A product too large for float32 becomes the largest float32.
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

inline constexpr int64_t kFloatsAtOnce = kAccessBytes / sizeof(float);
using SeveralFloats = Neighbours<float, kFloatsAtOnce>;

// sums[i] += values[i].
struct AddValues {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  const float* values;
  float* sums;
  int64_t num_elements;
  int64_t num_runs;  // as in ConvertValues

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    for_each_of_all(group, num_runs, [&](int64_t run) {
      const SeveralFloats added = reinterpret_cast<const SeveralFloats*>(values)[run];
      SeveralFloats sum = reinterpret_cast<const SeveralFloats*>(sums)[run];
      for (int64_t i = 0; i < kFloatsAtOnce; ++i) {
        sum.value[i] += added.value[i];
      }
      reinterpret_cast<SeveralFloats*>(sums)[run] = sum;
    });
    const int64_t rest = num_runs * kFloatsAtOnce;
    for_each_of_all(group, num_elements - rest, [&](int64_t i) { sums[rest + i] += values[rest + i]; });
  }
};

ISTHMUS_DEVICE bool is_finite(float value) { return (std::bit_cast<uint32_t>(value) & 0x7f800000) != 0x7f800000; }

// The sum of all threads' values of each kind, which all threads get. The tree of sums depends only on the group's
// size.
template <typename Group>
ISTHMUS_DEVICE SquaresOf sum_of_group(Group& group, const SquaresOf& value) {
  SquaresOf* sums = &group.template shared<SquaresOf>();
  sums[group.thread()] = value;
  for (int64_t count = group.size(); count > 1; count = (count + 1) / 2) {
    group.sync();
    const int64_t partner = group.thread() + (count + 1) / 2;
    if (partner < count) {
      sums[group.thread()].given += sums[partner].given;
      sums[group.thread()].dropped += sums[partner].dropped;
    }
  }
  group.sync();
  const SquaresOf sum = sums[0];
  group.sync();  // before the next call writes
  return sum;
}

// Sums of squares, one part for each group: given[i]^2 and (given[i] - decoded[i])^2 where both are finite.
struct SumSquares {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = kThreads * sizeof(SquaresOf);

  SquaredErrorJob job;
  int64_t num_parts;
  int64_t num_runs;  // as in ConvertValues

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    for_each_by_group(group, num_parts, [&](int64_t part) {
      const SquaresOf sum = sum_of_group(group, squares_of(part * group.size() + group.thread(), group.size()));
      if (group.thread() == 0) {
        job.parts[part] = sum;
      }
    });
  }

 private:
  // Counts the runs and single elements that are one thread's.
  ISTHMUS_DEVICE SquaresOf squares_of(int64_t first, int64_t group_size) const {
    SquaresOf squares = {};
    const int64_t stride = num_parts * group_size;
    for (int64_t run = first; run < num_runs; run += stride) {
      const SeveralFloats given = reinterpret_cast<const SeveralFloats*>(job.given)[run];
      const SeveralFloats decoded = reinterpret_cast<const SeveralFloats*>(job.decoded)[run];
      for (int64_t i = 0; i < kFloatsAtOnce; ++i) {
        add_squares(given.value[i], decoded.value[i], squares);
      }
    }
    for (int64_t i = num_runs * kFloatsAtOnce + first; i < job.num_elements; i += stride) {
      add_squares(job.given[i], job.decoded[i], squares);
    }
    return squares;
  }

  static ISTHMUS_DEVICE void add_squares(float given, float decoded, SquaresOf& squares) {
    if (is_finite(given) && is_finite(decoded)) {
      const double dropped = double{given} - double{decoded};
      squares.given += double{given} * double{given};
      squares.dropped += dropped * dropped;
    }
  }
};

// Adds all parts to the totals that the host sees. One group runs it.
struct AddSquaredError {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = kThreads * sizeof(SquaresOf);

  SquaredErrorJob job;
  int64_t num_parts;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() != 0) {
      return;
    }
    SquaresOf squares = {};
    for_each_of_group(group, num_parts, [&](int64_t part) {
      squares.given += job.parts[part].given;
      squares.dropped += job.parts[part].dropped;
    });
    const SquaresOf sum = sum_of_group(group, squares);
    if (group.thread() == 0) {
      group.publish(*job.given_total, *job.given_total + sum.given);
      group.publish(*job.dropped_total, *job.dropped_total + sum.dropped);
    }
  }
};

// Zeros the residual after a spike, and begins the guard's next step. Otherwise it reads the guard alone.
struct GuardResidual {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;
  static constexpr int64_t kMaxGroups = 256;

  ResidualGuard* guard;
  float* residual;
  int64_t num_elements;
  DeviceCounts* counts;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const bool drops = is_spike(*guard);
    if (drops) {
      for_each_of_all(group, num_elements, [&](int64_t i) { residual[i] = 0; });
    }
    if (group.is_last(guard->arrived) && group.thread() == 0) {
      if (drops) {
        group.fetch_add(counts->spikes, uint64_t{1});  // lanes of pieces and results count at once
      }
      next_step(*guard);
    }
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
