// A CTA as a group: kernels/block/group.h says what the members mean.
#pragma once

#include <cstdint>

#include "kernels/block/group.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// All threads of a CTA of whole warps, in one dimension. Their number is part of the type, so that loops over what a
// group has in fixed sizes unroll. Updates are seen by the whole device.
template <int kThreads>
class CtaGroup {
 public:
  // The most shared memory that the members declare together.
  static constexpr int64_t kMostFixedSharedBytes = 512;

  __device__ int64_t thread() const { return threadIdx.x; }
  static constexpr __device__ int64_t size() { return kThreads; }
  __device__ int64_t group_number() const { return blockIdx.x; }
  __device__ int64_t num_groups() const { return gridDim.x; }

  template <typename T>
  __device__ T& shared() const {
    extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
    return *reinterpret_cast<T*>(dynamic_shared_memory);
  }

  __device__ void sync() const { __syncthreads(); }
  __device__ bool any(bool condition) const { return __syncthreads_or(condition) != 0; }

  __device__ uint64_t sum(uint64_t value) const {
    __shared__ uint64_t sums_of_warps[kNumWarps];
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      value += __shfl_down_sync(kAllLanes, value, offset);
    }
    if (lane() == 0) {
      sums_of_warps[warp()] = value;
    }
    __syncthreads();
    uint64_t sum = 0;
    for (unsigned w = 0; w < kNumWarps; ++w) {
      sum += sums_of_warps[w];
    }
    __syncthreads();  // before the next call writes
    return sum;
  }

  __device__ uint32_t exclusive_sum(uint32_t value, uint32_t& total) const {
    __shared__ uint32_t sums_of_warps[kNumWarps];
    const uint32_t inclusive = inclusive_sum_of_warp(value);
    if (lane() == kWarp - 1) {
      sums_of_warps[warp()] = inclusive;
    }
    __syncthreads();
    // Every warp sums the warps for itself: one barrier less.
    const uint32_t sum_of_warp = lane() < kNumWarps ? sums_of_warps[lane()] : 0;
    const uint32_t inclusive_of_warps = inclusive_sum_of_warp(sum_of_warp);
    total = __shfl_sync(kAllLanes, inclusive_of_warps, kWarp - 1);
    const uint32_t before_warp = __shfl_sync(kAllLanes, inclusive_of_warps - sum_of_warp, warp());
    __syncthreads();  // before the next call writes
    return before_warp + inclusive - value;
  }

  template <int kDistance>
  __device__ float exchange(float value) const {
    return __shfl_xor_sync(kAllLanes, value, kDistance);
  }
  __device__ bool any_in_step(bool condition) const { return __any_sync(kAllLanes, condition) != 0; }

  __device__ uint32_t ballot_in_step(bool condition) const {
    return __ballot_sync(kAllLanes, condition) >> (threadIdx.x & kNeighbours) & ((1U << kNeighbours) - 1);
  }
  __device__ float from_neighbour(float value, int neighbour) const {
    return __shfl_sync(kAllLanes, value, neighbour, kNeighbours);
  }

  // As in the programming guide's example of __threadfence(): what the group wrote, then its arrival.
  __device__ bool is_last(uint32_t& arrived) const { return is_last_of(arrived, num_groups()); }
  __device__ bool is_last_of(uint32_t& arrived, int64_t num_groups) const {
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) {
      __threadfence();
      last = atomicAdd(&arrived, 1) == static_cast<uint32_t>(num_groups) - 1;
      if (last) {
        arrived = 0;
        __threadfence();
      }
    }
    return __syncthreads_or(last) != 0;
  }

  template <typename Word>
  __device__ void publish(Word& word, Word value) const {
    __threadfence_system();
    *static_cast<volatile Word*>(&word) = value;
  }

  __device__ uint32_t fetch_or(uint32_t& word, uint32_t operand) const { return atomicOr(&word, operand); }
  __device__ uint64_t fetch_or(uint64_t& word, uint64_t operand) const { return atomicOr(wide(word), operand); }
  __device__ uint32_t fetch_add(uint32_t& word, uint32_t operand) const { return atomicAdd(&word, operand); }
  __device__ uint64_t fetch_add(uint64_t& word, uint64_t operand) const { return atomicAdd(wide(word), operand); }
  __device__ uint32_t fetch_max(uint32_t& word, uint32_t operand) const { return atomicMax(&word, operand); }
  __device__ uint32_t fetch_min(uint32_t& word, uint32_t operand) const { return atomicMin(&word, operand); }
  // Memory of the device only. atomicXor() would ask for an answer, in loops.
  __device__ void apply_xor(uint32_t& word, uint32_t operand) const {
    asm volatile("red.global.xor.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(&word)), "r"(operand) : "memory");
  }

 private:
  static constexpr unsigned kWarp = 32;
  static constexpr unsigned kNeighbours = 16;
  static constexpr unsigned kNumWarps = kThreads / kWarp;
  static_assert(kThreads % kWarp == 0 && kNumWarps <= kWarp);
  static constexpr unsigned kAllLanes = 0xffffffff;

  static __device__ unsigned lane() { return threadIdx.x % kWarp; }
  static __device__ unsigned warp() { return threadIdx.x / kWarp; }
  static __device__ unsigned long long* wide(uint64_t& word) { return reinterpret_cast<unsigned long long*>(&word); }

  static __device__ uint32_t inclusive_sum_of_warp(uint32_t value) {
    for (unsigned offset = 1; offset < kWarp; offset *= 2) {
      const uint32_t before = __shfl_up_sync(kAllLanes, value, offset);
      value += lane() >= offset ? before : 0;
    }
    return value;
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
