#include "cuda/cuda_device.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <vector>

#include "cuda/cuda_calls.h"
#include "cuda/cuda_launcher.h"
#include "cuda/cuda_streams.h"
#include "isthmus/cuda.h"
#include "kernels/weights/weight_coder.h"

namespace isthmus {
namespace {

// Words in device memory that codecs use.
struct DeviceWords {
  kernels::DeviceCounts counts;
  DeviceFaults faults;
};

// Words in host memory that the device writes.
struct HostWords {
  DeviceFaults faults;
  kernels::DeviceCounts copied;
};

// Owns what `call` allocated. Throws std::bad_alloc if memory is lacking.
std::shared_ptr<void> owned(cudaError_t result, const char* call, int ordinal, void* memory,
                            cudaError_t (*free)(void*)) {
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw std::bad_alloc();
  }
  check_cuda(result, call, ordinal);
  return {memory, [free](void* freed) {
            const AllowedInCapture allowed;
            free(freed);
          }};
}

// Freeing waits for all work on the device. The end of the process may have freed the memory already.
std::shared_ptr<void> allocate_device(int ordinal, int64_t bytes) {
  const CurrentDevice current(ordinal);
  const AllowedInCapture allowed;
  void* memory = nullptr;
  const cudaError_t result = cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  return owned(result, "cudaMalloc", ordinal, memory, cudaFree);
}

// Allocates host memory that the device can read and write, at the same address.
std::shared_ptr<void> allocate_mapped_of_host(int ordinal, int64_t bytes) {
  const CurrentDevice current(ordinal);
  const AllowedInCapture allowed;
  void* memory = nullptr;
  const cudaError_t result =
      cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocMapped | cudaHostAllocPortable);
  return owned(result, "cudaHostAlloc", ordinal, memory, cudaFreeHost);
}

// Makes a T in such memory.
template <typename T>
std::shared_ptr<T> make_mapped(int ordinal) {
  const std::shared_ptr<void> memory = allocate_mapped_of_host(ordinal, sizeof(T));
  return {memory, new (memory.get()) T};
}

// All lanes precede the model's kernels, like FSDP2's own streams, which have the first raised priority. Work between
// nodes, for which all ranks wait, precedes the other lanes.
int priority_of(Lane lane, int ordinal) {
  const CurrentDevice current(ordinal);
  int lowest = 0;
  int highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange", ordinal);
  return lane == Lane::kInter || lane == Lane::kGatherInter ? highest : std::max(highest, lowest - 1);
}

std::vector<std::shared_ptr<OwnedStream>> lend_lanes(int ordinal) {
  std::vector<std::shared_ptr<OwnedStream>> lanes(kNumLanes);
  for (int lane = 0; lane < kNumLanes; ++lane) {
    lanes[lane] = lend_lane_stream(ordinal, priority_of(static_cast<Lane>(lane), ordinal));
  }
  return lanes;
}

std::vector<cudaStream_t> handles_of(const std::vector<std::shared_ptr<OwnedStream>>& streams) {
  std::vector<cudaStream_t> handles(streams.size());
  std::transform(streams.begin(), streams.end(), handles.begin(), [](const auto& stream) { return stream->get(); });
  return handles;
}

// Squared errors of units. They are made seldom, many in one allocation, and never reused: work that is under way, or
// in a graph, may still add to one that the host has released.
class SquaredErrors {
 public:
  explicit SquaredErrors(int ordinal) : ordinal_(ordinal) {}

  std::shared_ptr<SquaredError> make() {
    if (num_used_ == kOfSlab) {
      slabs_.push_back(make_mapped<Slab>(ordinal_));
      num_used_ = 0;
    }
    return {slabs_.back(), &(*slabs_.back())[num_used_++]};
  }

 private:
  static constexpr size_t kOfSlab = 256;
  using Slab = std::array<SquaredError, kOfSlab>;

  const int ordinal_;
  std::vector<std::shared_ptr<Slab>> slabs_;
  size_t num_used_ = kOfSlab;
};

nvtxDomainHandle_t nvtx_domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("isthmus");
  return domain;
}

}  // namespace

struct CudaDevice::Implementation {
  Implementation(int device_ordinal, bool times_events);

  void check(cudaError_t result, const char* call) const { check_cuda(result, call, ordinal); }
  // Copies after all work of the device, and waits: from pageable memory cudaMemcpy returns before the last bytes have
  // arrived.
  void copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) const {
    const CurrentDevice current(ordinal);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaMemcpy(to, from, static_cast<size_t>(bytes), kind), "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, Stream stream) const {
    const CurrentDevice current(ordinal);
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, cuda_stream(stream)), "cudaMemcpyAsync");
  }

  const int ordinal;
  const std::shared_ptr<CudaEventPool> events;
  const std::shared_ptr<HostWords> host_words = make_mapped<HostWords>(ordinal);
  std::vector<std::shared_ptr<void>> on_host;  // before device_words, whose end waits for all work
  SquaredErrors squared_errors{ordinal};
  const std::shared_ptr<void> device_words = allocate_device(ordinal, sizeof(DeviceWords));
  const std::vector<std::shared_ptr<OwnedStream>> lanes = lend_lanes(ordinal);
  const OwnedStream counts_stream{ordinal, 0};
  const CudaEvent order_event{std::make_shared<CudaEventPool>(ordinal, cudaEventDisableTiming)};
  CudaLauncher launcher{ordinal, handles_of(lanes), words()->faults.data(), host_words->faults.data()};

  DeviceWords* words() const { return static_cast<DeviceWords*>(device_words.get()); }
};

CudaDevice::Implementation::Implementation(int device_ordinal, bool times_events)
    : ordinal(device_ordinal),
      events(std::make_shared<CudaEventPool>(ordinal, times_events ? cudaEventDefault : cudaEventDisableTiming)) {
  const CurrentDevice current(ordinal);
  const DeviceWords initial;
  check(cudaMemcpy(words(), &initial, sizeof(initial), cudaMemcpyHostToDevice), "cudaMemcpy");
}

CudaDevice::CudaDevice(int ordinal, bool times_events)
    : implementation_(std::make_unique<Implementation>(ordinal, times_events)) {}
CudaDevice::~CudaDevice() = default;

int CudaDevice::ordinal() const { return implementation_->ordinal; }
std::string CudaDevice::name() const { return detail::concatenate("cuda:", ordinal()); }

DeviceMemory CudaDevice::allocate(int64_t bytes) { return allocate_device(ordinal(), bytes); }

void CudaDevice::read(ConstBuffer from, Buffer to_host) {
  check_same_length("read", from, to_host);
  implementation_->copy(to_host.data, from.data, from.bytes(), cudaMemcpyDeviceToHost);
}

void CudaDevice::write(ConstBuffer from_host, Buffer to) {
  check_same_length("write", from_host, to);
  implementation_->copy(to.data, from_host.data, to.bytes(), cudaMemcpyHostToDevice);
}

Stream CudaDevice::lane(Lane lane) { return {implementation_->lanes[static_cast<size_t>(lane)]->get()}; }

void* CudaDevice::allocate_on_host(int64_t bytes) {
  return implementation_->on_host.emplace_back(allocate_mapped_of_host(ordinal(), bytes)).get();
}

void CudaDevice::copy_to_host(ConstBuffer from, Buffer to_host, Stream stream) {
  check_same_length("copy_to_host", from, to_host);
  implementation_->copy(to_host.data, from.data, from.bytes(), cudaMemcpyDeviceToHost, stream);
}

// One event serves all calls, because a wait refers to what was recorded when the wait was enqueued.
void CudaDevice::order(Stream before, Stream after) {
  if (before.handle == after.handle) {
    return;
  }
  const CurrentDevice current(ordinal());
  const cudaEvent_t event = implementation_->order_event.get();
  implementation_->check(cudaEventRecord(event, cuda_stream(before)), "cudaEventRecord");
  implementation_->check(cudaStreamWaitEvent(cuda_stream(after), event, 0), "cudaStreamWaitEvent");
}

EventPtr CudaDevice::make_event() { return std::make_shared<CudaEvent>(implementation_->events); }

void CudaDevice::record(const EventPtr& event, Stream stream) {
  CudaEvent& recorded = CudaEvent::of(event);
  const bool captured = capture(stream) != 0;
  const CurrentDevice current(ordinal());
  implementation_->check(cudaEventRecord(recorded.get(), cuda_stream(stream)), "cudaEventRecord");
  recorded.set_state(captured ? CudaEvent::State::kCaptured : CudaEvent::State::kRecorded);
}

void CudaDevice::wait(const EventPtr& event, Stream stream) {
  const CudaEvent& awaited = CudaEvent::of(event);
  if (awaited.state() != CudaEvent::State::kNew) {
    const CurrentDevice current(ordinal());
    implementation_->check(cudaStreamWaitEvent(cuda_stream(stream), awaited.get(), 0), "cudaStreamWaitEvent");
  }
}

bool CudaDevice::done(const EventPtr& event) {
  const CudaEvent& asked = CudaEvent::of(event);
  if (asked.state() != CudaEvent::State::kRecorded) {
    return true;
  }
  const CurrentDevice current(ordinal());
  const AllowedInCapture allowed;
  const cudaError_t result = cudaEventQuery(asked.get());
  if (result == cudaErrorNotReady) {
    return false;
  }
  implementation_->check(result, "cudaEventQuery");
  return true;
}

std::optional<double> CudaDevice::seconds_between(const EventPtr& begin, const EventPtr& end) {
  for (const EventPtr& event : {begin, end}) {
    if (!CudaEvent::of(event).has_time() || !done(event)) {
      return std::nullopt;
    }
  }
  const CurrentDevice current(ordinal());
  const AllowedInCapture allowed;
  float milliseconds = 0;
  implementation_->check(cudaEventElapsedTime(&milliseconds, CudaEvent::of(begin).get(), CudaEvent::of(end).get()),
                         "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) / 1e3;
}

uint64_t CudaDevice::capture(Stream stream) {
  const CurrentDevice current(ordinal());
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  implementation_->check(cudaStreamGetCaptureInfo(cuda_stream(stream), &status, &id), "cudaStreamGetCaptureInfo");
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

void CudaDevice::copy(ConstBuffer in, Buffer out, Stream stream) {
  implementation_->copy(out.data, in.data, in.bytes(), cudaMemcpyDeviceToDevice, stream);
}

void CudaDevice::clear(Buffer buffer, Stream stream) {
  const CurrentDevice current(ordinal());
  implementation_->check(cudaMemsetAsync(buffer.data, 0, static_cast<size_t>(buffer.bytes()), cuda_stream(stream)),
                         "cudaMemsetAsync");
}

std::shared_ptr<SquaredError> CudaDevice::make_squared_error() { return implementation_->squared_errors.make(); }

PassesOfDevice CudaDevice::passes() {
  DeviceWords* words = implementation_->words();
  return {implementation_->launcher, &words->counts};
}

kernels::DeviceCounts CudaDevice::read_counts() {
  const CurrentDevice current(ordinal());
  const AllowedInCapture allowed;
  kernels::DeviceCounts& copied = implementation_->host_words->copied;
  const cudaStream_t stream = implementation_->counts_stream.get();
  implementation_->check(
      cudaMemcpyAsync(&copied, &implementation_->words()->counts, sizeof(copied), cudaMemcpyDeviceToHost, stream),
      "cudaMemcpyAsync");
  implementation_->check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return copied;
}

void CudaDevice::throw_if_faulted() {
  for (kernels::DeviceFault& fault : implementation_->host_words->faults) {
    if (std::atomic_ref(fault.reported).load(std::memory_order_acquire) != 0) {
      throw_if_any_reported(fault);
    }
  }
}

void CudaDevice::begin_range(const char* name) {
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(nvtx_domain(), &attributes);
}

void CudaDevice::end_range() { nvtxDomainRangePop(nvtx_domain()); }

std::shared_ptr<Device> make_cuda_device(int ordinal) { return std::make_shared<CudaDevice>(ordinal); }

}  // namespace isthmus
