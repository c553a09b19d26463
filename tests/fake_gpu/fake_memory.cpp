// Memory of a GPU that is not there: the host's. A copy is done when the call returns.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "fake_runtime.h"

namespace isthmus::fake_gpu {
namespace {

constexpr size_t kTotalBytes = size_t{16} << 30;
constexpr size_t kAlignment = 512;
constexpr int kGarbage = 0xa5;  // what fresh memory holds

struct Allocation {
  size_t bytes = 0;
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = 0;
};

// Never destroyed: allocations are freed while the program ends, too.
struct Memory {
  std::mutex mutex;
  std::map<const std::byte*, Allocation> allocations;
  size_t device_bytes = 0;

  // The one that `address` is part of, or null.
  std::pair<const std::byte*, Allocation> find(const void* address) {
    const auto* begin = static_cast<const std::byte*>(address);
    auto next = allocations.upper_bound(begin);
    if (next == allocations.begin() || begin >= std::prev(next)->first + std::prev(next)->second.bytes) {
      return {nullptr, {}};
    }
    return *std::prev(next);
  }
};

Memory& memory() {
  static auto* const instance = new Memory;
  return *instance;
}

cudaError_t allocate(void** address, size_t bytes, cudaMemoryType type) {
  *address = nullptr;
  if (bytes == 0) {
    return cudaSuccess;
  }
  count(Count::kAllocations);
  const std::lock_guard lock(memory().mutex);
  const bool on_device = type == cudaMemoryTypeDevice;
  if (on_device && bytes > kTotalBytes - memory().device_bytes) {
    return cudaErrorMemoryAllocation;
  }
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  *address = std::aligned_alloc(kAlignment, bytes);
  if (*address == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(*address, kGarbage, bytes);
  Allocation allocation{bytes, type, 0};
  cudaGetDevice(&allocation.device);
  memory().allocations[static_cast<std::byte*>(*address)] = allocation;
  memory().device_bytes += on_device ? bytes : 0;
  return cudaSuccess;
}

cudaError_t release(void* address, cudaMemoryType type, const char* caller) {
  if (address == nullptr) {
    return cudaSuccess;
  }
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().allocations.find(static_cast<std::byte*>(address));
  if (found == memory().allocations.end() || found->second.type != type) {
    give_up("%s(%p): not allocated, or by another function", caller, address);
  }
  memory().device_bytes -= type == cudaMemoryTypeDevice ? found->second.bytes : 0;
  memory().allocations.erase(found);
  std::free(address);
  return cudaSuccess;
}

cudaError_t copy(void* to, const void* from, size_t bytes, const char* caller) {
  const DeviceWork work;
  const auto moved_bytes = static_cast<int64_t>(bytes);
  const kernels::Moved moved = {moved_bytes, moved_bytes};
  count_launch("copy", &moved);
  check_memory(to, bytes, caller);
  check_memory(from, bytes, caller);
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

}  // namespace

void give_up(const char* format, ...) {
  std::fputs("fake GPU: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputs("\n", stderr);
  std::abort();
}

void check_memory(const void* address, size_t bytes, const char* caller) {
  const std::lock_guard lock(memory().mutex);
  const auto [begin, allocation] = memory().find(address);
  if (begin != nullptr && static_cast<const std::byte*>(address) + bytes > begin + allocation.bytes) {
    give_up("%s: %zu bytes at %p exceed an allocation of %zu bytes at %p", caller, bytes, address, allocation.bytes,
            static_cast<const void*>(begin));
  }
}

}  // namespace isthmus::fake_gpu

using namespace isthmus::fake_gpu;

FAKE_API cudaError_t cudaMalloc(void** address, size_t bytes) { return allocate(address, bytes, cudaMemoryTypeDevice); }
FAKE_API cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t stream) {
  check_stream(stream, "cudaMallocAsync");
  return allocate(address, bytes, cudaMemoryTypeDevice);
}
FAKE_API cudaError_t cudaFree(void* address) { return release(address, cudaMemoryTypeDevice, "cudaFree"); }
FAKE_API cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  check_stream(stream, "cudaFreeAsync");
  return release(address, cudaMemoryTypeDevice, "cudaFreeAsync");
}
FAKE_API cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned int) {
  return allocate(address, bytes, cudaMemoryTypeHost);
}
FAKE_API cudaError_t cudaMallocHost(void** address, size_t bytes) {
  return allocate(address, bytes, cudaMemoryTypeHost);
}
FAKE_API cudaError_t cudaFreeHost(void* address) { return release(address, cudaMemoryTypeHost, "cudaFreeHost"); }
FAKE_API cudaError_t cudaHostGetDevicePointer(void** on_device, void* on_host, unsigned int) {
  *on_device = on_host;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaHostRegister(void*, size_t, unsigned int) { return cudaErrorNotSupported; }
FAKE_API cudaError_t cudaHostUnregister(void*) { return cudaErrorNotSupported; }

FAKE_API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(memory().mutex);
  *free = kTotalBytes - memory().device_bytes;
  *total = kTotalBytes;
  return cudaSuccess;
}

FAKE_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  const std::lock_guard lock(memory().mutex);
  const auto [begin, allocation] = memory().find(address);
  *attributes = {};
  attributes->type = allocation.type;
  attributes->device = begin == nullptr ? cudaInvalidDeviceId : allocation.device;
  attributes->devicePointer = begin == nullptr ? nullptr : const_cast<void*>(address);
  attributes->hostPointer = allocation.type == cudaMemoryTypeDevice ? nullptr : const_cast<void*>(address);
  return cudaSuccess;
}

FAKE_API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  count(Count::kSynchronizations);
  return copy(to, from, bytes, "cudaMemcpy");
}
FAKE_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                     cudaStream_t stream) {
  check_stream(stream, "cudaMemcpyAsync");
  trace_work(kind == cudaMemcpyDeviceToHost ? "copy to host" : "copy", stream,
             {isthmus::test::reads(from, static_cast<int64_t>(bytes)),
              isthmus::test::writes(to, static_cast<int64_t>(bytes))});
  return copy(to, from, bytes, "cudaMemcpyAsync");
}
FAKE_API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  check_stream(stream, "cudaMemcpyPeerAsync");
  return copy(to, from, bytes, "cudaMemcpyPeerAsync");
}
FAKE_API cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  const DeviceWork work;
  const isthmus::kernels::Moved moved = {0, static_cast<int64_t>(bytes)};
  count_launch("clear", &moved);
  check_memory(to, bytes, "cudaMemset");
  std::memset(to, value, bytes);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  check_stream(stream, "cudaMemsetAsync");
  trace_work("clear", stream, {isthmus::test::writes(to, static_cast<int64_t>(bytes))});
  return cudaMemset(to, value, bytes);
}

// For tests (ctypes): as if a kernel had failed.
FAKE_API void fake_gpu_fail() { gpu_has_failed = true; }
