// Sixteen lanes side by side on the CPU: the Lanes of a block algorithm (kernels/quant/block.h) in the instruction
// set's widest vectors. Every operation but exchange() acts on each lane alone, so results do not depend on the
// vectors' width.
//
// A Lanes type has these members, with these meanings. Float and Word, a lane's float32 and 32 bits, have the operators
// of float and uint32_t, also with a number on the right that is the same for all lanes. On a GPU they are float and
// uint32_t, and each of sixteen neighbouring threads runs the algorithm for one lane.
#pragma once

#include <cstdint>

#include "kernels/block/group.h"

// Always inlined, because the compiler would leave calls. Not under sanitizers, where one large function takes minutes.
#ifdef ISTHMUS_CALL_LANES
#define ISTHMUS_LANES inline
#else
#define ISTHMUS_LANES [[gnu::always_inline]] inline
#endif

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

#if defined(__AVX512F__)
inline constexpr int kVectorLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kVectorLanes = 8;
#else
inline constexpr int kVectorLanes = 4;
#endif

using FloatVector = float __attribute__((vector_size(4 * kVectorLanes)));
using WordVector = uint32_t __attribute__((vector_size(4 * kVectorLanes)));
using IntVector = int32_t __attribute__((vector_size(4 * kVectorLanes)));
struct [[gnu::packed, gnu::aligned(4), gnu::may_alias]] UnalignedFloatVector {
  FloatVector vector;
};
struct [[gnu::packed, gnu::aligned(4), gnu::may_alias]] UnalignedWordVector {
  WordVector vector;
};

inline constexpr int kVectors = 16 / kVectorLanes;

struct VectorFloat {
  FloatVector vector[kVectors];
};
struct VectorWord {
  WordVector vector[kVectors];
};

template <typename Result, typename Function>
ISTHMUS_LANES Result for_each_vector(Function function) {
  Result result;
  for (int v = 0; v < kVectors; ++v) {
    result.vector[v] = function(v);
  }
  return result;
}

ISTHMUS_LANES VectorFloat operator+(VectorFloat a, VectorFloat b) {
  return for_each_vector<VectorFloat>([&](int v) { return a.vector[v] + b.vector[v]; });
}
ISTHMUS_LANES VectorFloat operator+(VectorFloat a, float b) {
  return for_each_vector<VectorFloat>([&](int v) { return a.vector[v] + b; });
}
ISTHMUS_LANES VectorFloat operator-(VectorFloat a, VectorFloat b) {
  return for_each_vector<VectorFloat>([&](int v) { return a.vector[v] - b.vector[v]; });
}
ISTHMUS_LANES VectorFloat operator-(VectorFloat a, float b) {
  return for_each_vector<VectorFloat>([&](int v) { return a.vector[v] - b; });
}
ISTHMUS_LANES VectorFloat operator*(VectorFloat a, VectorFloat b) {
  return for_each_vector<VectorFloat>([&](int v) { return a.vector[v] * b.vector[v]; });
}
ISTHMUS_LANES VectorFloat operator*(VectorFloat a, float b) {
  return for_each_vector<VectorFloat>([&](int v) { return a.vector[v] * b; });
}

ISTHMUS_LANES VectorWord operator|(VectorWord a, VectorWord b) {
  return for_each_vector<VectorWord>([&](int v) { return a.vector[v] | b.vector[v]; });
}
ISTHMUS_LANES VectorWord operator|(VectorWord a, uint32_t b) {
  return for_each_vector<VectorWord>([&](int v) { return a.vector[v] | b; });
}
ISTHMUS_LANES VectorWord operator&(VectorWord a, uint32_t b) {
  return for_each_vector<VectorWord>([&](int v) { return a.vector[v] & b; });
}
ISTHMUS_LANES VectorWord operator^(VectorWord a, VectorWord b) {
  return for_each_vector<VectorWord>([&](int v) { return a.vector[v] ^ b.vector[v]; });
}
ISTHMUS_LANES VectorWord operator<<(VectorWord a, int bits) {
  return for_each_vector<VectorWord>([&](int v) { return a.vector[v] << bits; });
}
ISTHMUS_LANES VectorWord operator>>(VectorWord a, int bits) {
  return for_each_vector<VectorWord>([&](int v) { return a.vector[v] >> bits; });
}

struct VectorLanes {
  using Float = VectorFloat;
  using Word = VectorWord;

  // Lane i of the result is of_lane(i).
  template <typename Function>
  ISTHMUS_LANES static Word each(Function of_lane) {
    alignas(64) uint32_t words[16];
    for (int lane = 0; lane < 16; ++lane) {
      words[lane] = of_lane(lane);
    }
    return load(words, true);
  }

  // Lane i is at row[i], at any alignment. Where not present, load() gives zeros and store() writes nothing; memory is
  // not touched.
  ISTHMUS_LANES static Float load(const float* row, bool present) {
    return present ? for_each_vector<Float>([&](int v) {
      return reinterpret_cast<const UnalignedFloatVector*>(row + int64_t{v} * kVectorLanes)->vector;
    })
                   : Float{};
  }
  ISTHMUS_LANES static Word load(const uint32_t* row, bool present) {
    return present ? for_each_vector<Word>([&](int v) {
      return reinterpret_cast<const UnalignedWordVector*>(row + int64_t{v} * kVectorLanes)->vector;
    })
                   : Word{};
  }
  ISTHMUS_LANES static void store(Float value, float* row, bool present) {
    for (int v = 0; v < kVectors && present; ++v) {
      reinterpret_cast<UnalignedFloatVector*>(row + int64_t{v} * kVectorLanes)->vector = value.vector[v];
    }
  }
  ISTHMUS_LANES static void store(Word value, uint32_t* row, bool present) {
    for (int v = 0; v < kVectors && present; ++v) {
      reinterpret_cast<UnalignedWordVector*>(row + int64_t{v} * kVectorLanes)->vector = value.vector[v];
    }
  }

  ISTHMUS_LANES static Word bits(Float a) {
    return for_each_vector<Word>([&](int v) { return (WordVector)a.vector[v]; });
  }
  ISTHMUS_LANES static Float floats(Word a) {
    return for_each_vector<Float>([&](int v) { return (FloatVector)a.vector[v]; });
  }

  // NaN is not allowed.
  ISTHMUS_LANES static Float limited(Float a, float least, float most) {
    return for_each_vector<Float>([&](int v) {
      const FloatVector lower = least - FloatVector{};
      const FloatVector upper = most - FloatVector{};
      const FloatVector above = a.vector[v] > lower ? a.vector[v] : lower;
      return above < upper ? above : upper;
    });
  }
  // Words must be below 2^31.
  ISTHMUS_LANES static Word max(Word a, Word b) {
    return for_each_vector<Word>(
        [&](int v) { return (IntVector)a.vector[v] > (IntVector)b.vector[v] ? a.vector[v] : b.vector[v]; });
  }

  // Lane i of the result is lane i ^ kDistance of `a`: 1, 2, 4 or 8.
  template <int kDistance>
  ISTHMUS_LANES static Float exchange(Float a) {
    if constexpr (kDistance >= kVectorLanes) {
      return for_each_vector<Float>([&](int v) { return a.vector[v ^ (kDistance / kVectorLanes)]; });
    } else {
      return for_each_vector<Float>([&](int v) { return exchange_in<kDistance>(a.vector[v]); });
    }
  }

  // Calls visit(lane) for each lane of this thread; lane i of the result is what it returned.
  template <typename Visit>
  ISTHMUS_LANES static void for_lanes(Visit visit) {
    for (int lane = 0; lane < 16; ++lane) {
      visit(lane);
    }
  }
  ISTHMUS_LANES static uint32_t of(Word a, int lane) { return a.vector[lane / kVectorLanes][lane % kVectorLanes]; }

  // Takes a value that is the same in all lanes.
  ISTHMUS_LANES static float common(Float a) { return a.vector[0][0]; }
  ISTHMUS_LANES static uint32_t common(Word a) { return a.vector[0][0]; }

  // Whether the condition holds in these lanes, or in others that run in step and make the same exchanges.
  static bool any(bool condition) { return condition; }
  // Whether these lanes write the values that all lanes share.
  static bool writes() { return true; }

 private:
  template <int kDistance>
  ISTHMUS_LANES static FloatVector exchange_in(FloatVector a) {
    constexpr int d = kDistance;
#if defined(__AVX512F__)
    return __builtin_shufflevector(a, a, 0 ^ d, 1 ^ d, 2 ^ d, 3 ^ d, 4 ^ d, 5 ^ d, 6 ^ d, 7 ^ d, 8 ^ d, 9 ^ d, 10 ^ d,
                                   11 ^ d, 12 ^ d, 13 ^ d, 14 ^ d, 15 ^ d);
#elif defined(__AVX2__)
    return __builtin_shufflevector(a, a, 0 ^ d, 1 ^ d, 2 ^ d, 3 ^ d, 4 ^ d, 5 ^ d, 6 ^ d, 7 ^ d);
#else
    return __builtin_shufflevector(a, a, 0 ^ d, 1 ^ d, 2 ^ d, 3 ^ d);
#endif
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE

#undef ISTHMUS_LANES
