// Devices, streams and events of a GPU that is not there. Everything is done when the call returns, so streams order
// nothing and all events have passed; but handles are checked. Kernels of NCCL that spin are the exception: what they
// occupy is not done.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "fake_runtime.h"

struct CUevent_st {
  bool keeps_time = true;
  std::optional<std::chrono::steady_clock::time_point> recorded;
  std::vector<isthmus::fake_gpu::ResidentPtr> behind = {};  // guarded by residents_mutex
};

struct CUstream_st {
  int priority = 0;
  unsigned int flags = 0;
  int device = 0;
  std::vector<isthmus::fake_gpu::ResidentPtr> behind = {};  // guarded by residents_mutex
};

namespace isthmus::fake_gpu {
namespace {

constexpr int kHighestPriority = -5;

// Never destroyed: streams and events are destroyed while the program ends, too.
template <typename T>
class Handles {
 public:
  explicit Handles(const char* what) : what_(what) {}
  T* add(T value) {
    const std::lock_guard lock(mutex_);
    return *alive_.insert(new T(value)).first;
  }
  void remove(T* handle, const char* caller) {
    check(handle, caller);
    const std::lock_guard lock(mutex_);
    alive_.erase(handle);
    delete handle;
  }
  void check(T* handle, const char* caller) {
    const std::lock_guard lock(mutex_);
    if (!alive_.contains(handle)) {
      give_up("%s: no such %s, or destroyed", caller, what_);
    }
  }

 private:
  const char* what_;
  std::mutex mutex_;
  std::set<T*> alive_;
};

Handles<CUstream_st>& streams() {
  static auto* const instance = new Handles<CUstream_st>("stream");
  return *instance;
}

Handles<CUevent_st>& events() {
  static auto* const instance = new Handles<CUevent_st>("event");
  return *instance;
}

thread_local int current_device = 0;
std::array<std::atomic<bool>, 64> devices_with_context;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t fail(cudaError_t error) { return last_error = error; }

cudaError_t outcome() { return gpu_has_failed ? fail(cudaErrorIllegalAddress) : cudaSuccess; }
cudaError_t outcome_of_query(const std::vector<ResidentPtr>& kernels) {
  return kernels.empty() || gpu_has_failed ? outcome() : fail(cudaErrorNotReady);
}

int num_devices() {
  const char* count = std::getenv("FAKE_GPU_COUNT");
  return count == nullptr ? 1 : std::atoi(count);
}

bool is_default(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

cudaError_t create_stream(cudaStream_t* stream, unsigned int flags, int priority) {
  devices_with_context[current_device] = true;
  *stream = streams().add({priority, flags, current_device});
  return cudaSuccess;
}

std::mutex residents_mutex;

CUstream_st& of(cudaStream_t stream) {
  static auto* const default_stream = new CUstream_st;
  return is_default(stream) ? *default_stream : *stream;
}

// Forgets kernels that have ended. Under residents_mutex.
const std::vector<ResidentPtr>& still_running(std::vector<ResidentPtr>& kernels) {
  std::erase_if(kernels, [](const ResidentPtr& kernel) { return kernel->ended.load(); });
  return kernels;
}

std::vector<ResidentPtr> residents_of(cudaEvent_t event) {
  const std::lock_guard lock(residents_mutex);
  return still_running(event->behind);
}

std::vector<ResidentPtr>& all_residents() {
  static auto* const instance = new std::vector<ResidentPtr>;
  return *instance;
}

cudaError_t record(cudaEvent_t event, cudaStream_t stream, const char* caller) {
  events().check(event, caller);
  check_stream(stream, caller);
  trace_record(event, stream);
  event->recorded = std::chrono::steady_clock::now();
  const std::lock_guard lock(residents_mutex);
  event->behind = still_running(of(stream).behind);
  return outcome();
}

cudaError_t synchronize(const char* with, const void* handle, const std::vector<ResidentPtr>& kernels) {
  count(Count::kSynchronizations);
  trace_synchronize(with, handle);
  wait_for(kernels);
  return outcome();
}

}  // namespace

bool nccl_spins() {
  static const bool is_set = std::getenv("FAKE_NCCL_SPINS") != nullptr;
  return is_set;
}

std::vector<ResidentPtr> residents_of(cudaStream_t stream) {
  const std::lock_guard lock(residents_mutex);
  return still_running(of(stream).behind);
}

std::vector<ResidentPtr> residents_of_device(int device) {
  const std::lock_guard lock(residents_mutex);
  std::vector<ResidentPtr> kernels = still_running(all_residents());
  std::erase_if(kernels, [&](const ResidentPtr& kernel) { return kernel->device != device; });
  return kernels;
}

void add_resident(cudaStream_t stream, const ResidentPtr& kernel) {
  const std::lock_guard lock(residents_mutex);
  of(stream).behind.push_back(kernel);
  all_residents().push_back(kernel);
}

void wait_for(const std::vector<ResidentPtr>& kernels) {
  for (const ResidentPtr& kernel : kernels) {
    while (!kernel->ended) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

void check_stream(cudaStream_t stream, const char* caller) {
  if (!is_default(stream)) {
    streams().check(stream, caller);
  }
}

}  // namespace isthmus::fake_gpu

using namespace isthmus::fake_gpu;

// --- errors

FAKE_API cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
FAKE_API cudaError_t cudaPeekAtLastError() { return last_error; }

// --- devices

FAKE_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
FAKE_API cudaError_t cudaGetDeviceCount(int* count) {
  *count = num_devices();
  return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}
FAKE_API cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return num_devices() > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}
FAKE_API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= num_devices()) {
    return fail(cudaErrorInvalidDevice);
  }
  current_device = device;
  devices_with_context[device] = true;  // since CUDA 12
  return cudaSuccess;
}
FAKE_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::strcpy(properties->name, "Fake GPU");
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  cudaMemGetInfo(&properties->sharedMemPerBlock, &properties->totalGlobalMem);
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->multiProcessorCount = 132;
  properties->major = 9;
  properties->l2CacheSize = 50 << 20;
  properties->canMapHostMemory = properties->unifiedAddressing = 1;
  properties->pciBusID = device + 1;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, device);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, length, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = kHighestPriority;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaDeviceSynchronize() {
  return synchronize("device", nullptr, residents_of_device(current_device));
}

FAKE_API int cuDevicePrimaryCtxGetState(int device, unsigned int* flags, int* active) {
  *flags = 0;
  *active = devices_with_context[device] ? 1 : 0;
  return 0;
}

// --- streams

FAKE_API cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create_stream(stream, cudaStreamDefault, 0); }
FAKE_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return create_stream(stream, flags, 0);
}
FAKE_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  return create_stream(stream, flags, priority);
}
FAKE_API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  streams().remove(stream, "cudaStreamDestroy");
  return cudaSuccess;
}
FAKE_API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  check_stream(stream, "cudaStreamGetPriority");
  *priority = is_default(stream) ? 0 : stream->priority;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  check_stream(stream, "cudaStreamQuery");
  return outcome_of_query(residents_of(stream));
}
FAKE_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  check_stream(stream, "cudaStreamSynchronize");
  return synchronize("stream", stream, residents_of(stream));
}
FAKE_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  check_stream(stream, "cudaStreamWaitEvent");
  events().check(event, "cudaStreamWaitEvent");
  trace_wait(stream, event);
  for (const ResidentPtr& kernel : residents_of(event)) {
    add_resident(stream, kernel);
  }
  return outcome();
}
FAKE_API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                           unsigned int) {
  check_stream(stream, "cudaStreamAddCallback");
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}
FAKE_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  check_stream(stream, "cudaLaunchHostFunc");
  function(data);
  return cudaSuccess;
}

// --- events

FAKE_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  *event = events().add({.keeps_time = (flags & cudaEventDisableTiming) == 0, .recorded = {}});
  return cudaSuccess;
}
FAKE_API cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
FAKE_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  events().remove(event, "cudaEventDestroy");
  return cudaSuccess;
}
FAKE_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return record(event, stream, "cudaEventRecord");
}
FAKE_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  return record(event, stream, "cudaEventRecordWithFlags");
}
FAKE_API cudaError_t cudaEventQuery(cudaEvent_t event) {
  events().check(event, "cudaEventQuery");
  trace_query(event);
  return outcome_of_query(residents_of(event));
}
FAKE_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  events().check(event, "cudaEventSynchronize");
  return synchronize("event", event, residents_of(event));
}
FAKE_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  events().check(begin, "cudaEventElapsedTime");
  events().check(end, "cudaEventElapsedTime");
  if (!begin->recorded || !end->recorded || !begin->keeps_time || !end->keeps_time) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(*end->recorded - *begin->recorded).count();
  return cudaSuccess;
}

// --- graphs: nothing is ever captured

FAKE_API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  check_stream(stream, "cudaStreamIsCapturing");
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
FAKE_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                              unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                              const cudaGraphEdgeData**, size_t* num_dependencies) {
  if (id != nullptr) {
    *id = 0;
  }
  if (num_dependencies != nullptr) {
    *num_dependencies = 0;
  }
  return cudaStreamIsCapturing(stream, status);
}
FAKE_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
FAKE_API cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return fail(cudaErrorNotSupported); }
