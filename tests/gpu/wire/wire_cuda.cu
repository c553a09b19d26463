// The wire on a GPU: blocks that copy, and then stay until the link would be free.
#include <algorithm>

#include "tests/gpu/wire/wire.h"

namespace isthmus::wire {
namespace {

// As many threads as blocks of NCCL have, and so much shared memory that no block of a large matrix product fits
// beside.
constexpr int kThreads = 512;
constexpr int kSharedBytes = 96 << 10;
constexpr int kMostParts = 96;       // of one launch: arguments have 4 KiB
constexpr int kMostLaunches = 4096;  // that have not ended
constexpr int kInFlight = 8;         // vectors of a thread: few blocks are to be as fast as a link
constexpr unsigned kNapNs = 100;

struct Parts {
  Part part[kMostParts];
  int count = 0;
};

// What the blocks of a launch share. until_ns: 0 until the link is booked, and again once all blocks have ended.
struct Launch {
  unsigned long long until_ns;
  unsigned int blocks_ended;
};

__device__ unsigned long long free_from_ns[kNumLinks];
__device__ Launch launches[kMostLaunches];

__device__ unsigned long long now_ns() {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Takes the link for hold_ns as soon as it is free; returns when that is over.
__device__ unsigned long long book(unsigned long long& free_from, unsigned long long hold_ns) {
  const unsigned long long now = now_ns();
  unsigned long long seen = atomicAdd(&free_from, 0ULL);
  for (;;) {
    const unsigned long long until = (seen > now ? seen : now) + hold_ns;
    const unsigned long long before = atomicCAS(&free_from, seen, until);
    if (before == seen) {
      return until;
    }
    seen = before;
  }
}

__device__ void copy(const Part& part, int64_t thread, int64_t num_threads) {
  const auto address = reinterpret_cast<uintptr_t>(part.from) | reinterpret_cast<uintptr_t>(part.to);
  const int64_t num_vectors = address % sizeof(ulonglong2) == 0 ? part.bytes / sizeof(ulonglong2) : 0;
  for (int64_t begin = thread; begin < num_vectors; begin += kInFlight * num_threads) {
    ulonglong2 vectors[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t i = begin + k * num_threads;
      vectors[k] = i < num_vectors ? static_cast<const ulonglong2*>(part.from)[i] : ulonglong2{};
      if (part.sender >= 0 && i == kernels::kHeaderElements / 2) {
        vectors[k].y = readdressed(vectors[k].y, part.sender);
      }
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t i = begin + k * num_threads;
      if (i < num_vectors) {
        static_cast<ulonglong2*>(part.to)[i] = vectors[k];
      }
    }
  }
  for (int64_t i = num_vectors * sizeof(ulonglong2) + thread; i < part.bytes; i += num_threads) {
    static_cast<char*>(part.to)[i] = static_cast<const char*>(part.from)[i];
  }
}
static_assert(kernels::kHeaderElements % 2 == 1, "the word is the second of a vector");

__global__ void __launch_bounds__(kThreads)
    occupy(__grid_constant__ const Parts parts, int link, unsigned long long hold_ns, unsigned long long latency_ns,
           int number) {
  Launch& launch = launches[number];
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    atomicExch(&launch.until_ns, book(free_from_ns[link], hold_ns) + latency_ns);
  }
  const int64_t thread = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  for (int i = 0; i < parts.count; ++i) {
    copy(parts.part[i], thread, gridDim.x * static_cast<int64_t>(kThreads));
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned long long until = 0;
    while ((until = atomicAdd(&launch.until_ns, 0ULL)) == 0 || now_ns() < until) {
      __nanosleep(kNapNs);
    }
    if (atomicInc(&launch.blocks_ended, gridDim.x - 1) == gridDim.x - 1) {
      atomicExch(&launch.until_ns, 0ULL);
    }
  }
}

unsigned long long to_ns(double seconds) { return static_cast<unsigned long long>(1e9 * seconds); }

}  // namespace

cudaError_t transmit(const Transfer& transfer, cudaStream_t stream) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(occupy, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  static int number = 0;  // under the lock of the caller
  if (allowed != cudaSuccess) {
    return allowed;
  }
  size_t next = 0;
  do {
    Parts parts;
    for (; next < transfer.parts.size() && parts.count < kMostParts; ++next) {
      parts.part[parts.count++] = transfer.parts[next];
    }
    const bool is_last = next == transfer.parts.size();
    number = (number + 1) % kMostLaunches;
    occupy<<<transfer.num_blocks, kThreads, kSharedBytes, stream>>>(parts, static_cast<int>(transfer.link),
                                                                    is_last ? to_ns(transfer.hold_s) : 0,
                                                                    is_last ? to_ns(transfer.latency_s) : 0, number);
  } while (next < transfer.parts.size());
  return cudaGetLastError();
}

}  // namespace isthmus::wire
