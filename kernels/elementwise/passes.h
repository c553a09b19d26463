// Arithmetic on whole buffers, residuals after a spike, and units that ranks tell each other, on many groups: what
// buffer.h and host.cpp have for the CPU.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/block/float_types.h"
#include "kernels/block/magnitudes.h"
#include "kernels/block/packet_passes.h"
#include "kernels/elementwise/job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr int64_t kAccessBytes = 16;  // the most that a thread loads or stores at once

// out[i] = map(in[i], out[i]). The two may be the same memory and type. Neighbours are loaded and stored together: in
// one access on the side with the smaller elements, in several on the other.
template <typename In, typename Out, typename Map>
struct MapValues {
  static constexpr int64_t kNeighbours = kAccessBytes / (sizeof(In) < sizeof(Out) ? sizeof(In) : sizeof(Out));

  const In* in;
  Out* out;
  int64_t num_elements;
  int64_t num_runs;  // of kNeighbours elements from the first on, which begin at multiples of kAccessBytes
  Map map;

  Moved moved() const {
    const int64_t out_bytes = num_elements * static_cast<int64_t>(sizeof(Out));
    return {num_elements * static_cast<int64_t>(sizeof(In)) + (Map::kReadsOut ? out_bytes : 0), out_bytes};
  }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    using SeveralIn = SeveralOf<In, kNeighbours>;
    using SeveralOut = SeveralOf<Out, kNeighbours>;
    for_each_of_all(group, num_runs, [&](int64_t run) {
      const SeveralIn loaded = reinterpret_cast<const SeveralIn*>(in)[run];
      SeveralOut result = Map::kReadsOut ? reinterpret_cast<const SeveralOut*>(out)[run] : SeveralOut{};
      for (int64_t i = 0; i < kNeighbours; ++i) {
        result.value[i] = map(loaded.value[i], result.value[i]);
      }
      reinterpret_cast<SeveralOut*>(out)[run] = result;
    });
    const int64_t rest = num_runs * kNeighbours;
    for_each_of_all(group, num_elements - rest, [&](int64_t i) { out[rest + i] = map(in[rest + i], out[rest + i]); });
  }
};

template <typename Out>
struct Converted {
  static constexpr bool kReadsOut = false;
  template <typename In>
  ISTHMUS_DEVICE Out operator()(In value, Out) const {
    return narrow<Out>(widen(value));
  }
};
template <typename Out>
struct Scaled {
  static constexpr bool kReadsOut = false;
  double factor;
  template <typename In>
  ISTHMUS_DEVICE Out operator()(In value, Out) const {
    return scaled<Out>(value, factor);
  }
};
// A product too large for float32 becomes the largest float32.
struct Multiplied {
  static constexpr bool kReadsOut = false;
  double factor;
  ISTHMUS_DEVICE float operator()(float value, float) const { return limited_to_float32(value * factor); }
};
struct Added {
  static constexpr bool kReadsOut = true;
  ISTHMUS_DEVICE float operator()(float value, float sum) const { return sum + value; }
};

inline constexpr int64_t kFloatsAtOnce = kAccessBytes / sizeof(float);
using SeveralFloats = SeveralOf<float, kFloatsAtOnce>;

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
  static constexpr int64_t kMaxSharedBytes = kPassThreads * sizeof(SquaresOf);

  SquaredErrorJob job;
  int64_t num_parts;
  int64_t num_runs;  // as in MapValues

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
  static constexpr int64_t kMaxSharedBytes = kPassThreads * sizeof(SquaresOf);

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

// Zeros the residual after a spike, and begins the next step's magnitudes. Otherwise it reads magnitudes alone.
struct DropResidualAfterSpike {
  static constexpr int64_t kMaxGroups = 256;

  DropResidualJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const bool drops = is_spike(*job.magnitudes);
    if (drops) {
      auto* residual = static_cast<float*>(job.residual.data);
      for_each_of_all(group, job.residual.num_elements, [&](int64_t i) { residual[i] = 0; });
    }
    if (group.is_last(job.magnitudes->arrived) && group.thread() == 0) {
      if (drops) {
        group.fetch_add(job.counts->spikes, uint64_t{1});  // lanes of pieces and results count at once
      }
      next_step(*job.magnitudes);
    }
  }
};

struct SetContexts {
  static constexpr int kThreads = 32;

  SetContextsJob job;

  static Moved moved() { return {}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    for_each_of_all(group, job.count, [&](int64_t i) { job.contexts[i] = job.value; });
  }
};

struct NextStep {
  static constexpr int kThreads = 32;

  NextStepJob job;

  static Moved moved() { return {}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() == 0 && group.thread() == 0) {
      ++job.context->step;
    }
  }
};

// One thread of one group does it: there are few ranks.
struct RefuseOtherUnits {
  RefuseUnitsJob job;

  Moved moved() const { return {job.num_ranks * static_cast<int64_t>(sizeof(DeviceContext)), 0}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() != 0 || group.thread() != 0) {
      return;
    }
    for (int64_t i = 0; i < job.num_ranks; ++i) {
      if (job.told[i].unit_hash != job.unit_hash) {
        refuse(group, job.told[i]);
        return;
      }
    }
  }

 private:
  template <typename Group>
  ISTHMUS_DEVICE void refuse(Group& group, const DeviceContext& other) const {
    DeviceFault fault;
    fault.code = DeviceFault::code_of(static_cast<int64_t>(other.step), FaultKind::kUnits);
    fault.expected.word[kHeaderUnit] = job.unit_hash;
    fault.received.word[kHeaderUnit] = other.unit_hash;
    copy_fault(group, fault, *job.mapped_fault);
    for (int64_t i = 0; i < job.num_packets; ++i) {
      reinterpret_cast<uint64_t*>(job.packets + i * job.packet_bytes)[kHeaderUnit] = ~job.unit_hash;
    }
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
