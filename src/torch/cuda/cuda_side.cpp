#include "torch/cuda/cuda_side.h"

#include <ATen/record_function.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <mutex>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <utility>

#include "isthmus/error.h"
#include "torch/cuda/nccl_tier.h"
#include "torch/cuda/torch_cuda_device.h"
#include "torch/works/cuda_work.h"

namespace isthmus::torch_backend {
namespace {

// The variables by which torch lets the Works of NCCL block the host.
bool works_block() { return c10d::getCvarBool({"TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"}, false); }

// One GPU, and what runs there.
struct Gpu {
  at::Device device;
  CudaPlace place;
  std::shared_ptr<Communicator> communicator;
};

class NcclSide final : public CudaSide {
 public:
  NcclSide(CudaParts parts, NodeMap map, int rank, isthmus::Options options)
      : parts_(std::move(parts)), map_(std::move(map)), rank_(rank), options_(std::move(options)) {}

  const BackendPtr& world() const override { return parts_.world; }

  WorkPtr enqueue(const TwoTierCall& call, const Watcher& watcher) override;
  void with_communicator(const std::function<void(Communicator&)>& action) override;
  bool has_communicator() const override { return gpu() != nullptr; }

  const char* phase() const override {
    const auto found = gpu();
    return found ? found->communicator->phase() : "";
  }
  void throw_if_faulted() override {
    if (const auto found = gpu()) {
      found->place.device->throw_if_faulted();
    }
  }
  bool idle() override;

  std::optional<CudaStats> stats() override;
  void reset_stats() override;

  void connect(at::Device device) override;
  void describe(const std::string& group) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  void abort() override;
  void shutdown() override;

 private:
  using Named = std::pair<const char*, BackendPtr>;

  // In the order in which all ranks connect them; without those that are null.
  std::vector<Named> tiers() const;
  std::vector<BackendPtr> all() const;
  std::shared_ptr<Gpu> gpu() const;
  Gpu& gpu_for(at::Device device);  // under enqueue_mutex_
  std::shared_ptr<Gpu> make_gpu(at::Device device) const;
  std::shared_ptr<Transport> make_tier(const char* name, const BackendPtr& backend, at::Device device,
                                       bool between_nodes) const;
  static EventPtr copy_back(const TwoTierCall& call, const EventPtr& done, const CudaPlace& place);

  const CudaParts parts_;
  const NodeMap map_;
  const int rank_;
  const isthmus::Options options_;

  std::atomic<bool> closed_{false};  // aborted, or shut down

  std::mutex enqueue_mutex_;  // held by who enqueues, for as long as NCCL lets it wait
  EventPtr last_;             // under enqueue_mutex_

  mutable std::mutex mutex_;  // guards what follows, for moments only
  std::shared_ptr<Gpu> gpu_;  // null until a device is known, and after shutdown()
};

WorkPtr NcclSide::enqueue(const TwoTierCall& call, const Watcher& watcher) {
  const std::lock_guard lock(enqueue_mutex_);
  Gpu& here = gpu_for(call.output.device());
  const c10::cuda::CUDAGuard on_device(here.device);
  RECORD_FUNCTION(call.title, std::vector<c10::IValue>{call.input});
  const auto stream = c10::cuda::getCurrentCUDAStream(here.device.index());
  last_ = call.run(*here.communicator, {stream.stream()});
  if (!call.written.is_same(call.output)) {
    last_ = copy_back(call, last_, here.place);
  }
  return c10::make_intrusive<CudaWork>(rank_, call, last_, here.place, watcher);
}

EventPtr NcclSide::copy_back(const TwoTierCall& call, const EventPtr& done, const CudaPlace& place) {
  const Stream stream{place.aftermath.stream()};
  place.device->wait(done, stream);
  {
    const c10::cuda::CUDAStreamGuard on_stream(place.aftermath);
    call.copy_back();
  }
  EventPtr copied = place.device->make_event();
  place.device->record(copied, stream);
  return copied;
}

void NcclSide::with_communicator(const std::function<void(Communicator&)>& action) {
  const std::lock_guard lock(enqueue_mutex_);
  const auto found = gpu();
  Gpu& here = found ? *found : gpu_for({at::kCUDA, c10::cuda::current_device()});
  const c10::cuda::CUDAGuard on_device(here.device);
  action(*here.communicator);
}

bool NcclSide::idle() {
  const std::unique_lock lock(enqueue_mutex_, std::try_to_lock);
  if (!lock) {
    return false;
  }
  const auto found = gpu();
  return !found || !last_ || found->place.device->done(last_);
}

std::optional<CudaStats> NcclSide::stats() {
  const auto found = gpu();
  if (!found) {
    return std::nullopt;
  }
  return CudaStats{found->device.str(), found->communicator->stats()};
}

void NcclSide::reset_stats() {
  if (const auto found = gpu()) {
    found->communicator->reset_stats();
  }
}

void NcclSide::connect(at::Device device) {
  const std::lock_guard lock(enqueue_mutex_);
  if (map_.two_tier()) {
    gpu_for(device);
  }
  for (const BackendPtr& backend : all()) {
    backend->eagerConnectSingleDevice(device);
  }
}

void NcclSide::describe(const std::string& group) {
  parts_.world->setGroupDesc(group);
  for (const auto& [name, backend] : tiers()) {
    backend->setGroupDesc(detail::concatenate(group, ":isthmus_", name));
  }
}

void NcclSide::set_timeout(std::chrono::milliseconds timeout) {
  for (const BackendPtr& backend : all()) {
    backend->setTimeout(timeout);
  }
}

// Not by way of the communicator: whoever is blocked in it lets go then. NCCL's communicators are aborted once.
void NcclSide::abort() {
  if (closed_.exchange(true)) {
    return;
  }
  for (const BackendPtr& backend : all()) {
    try {
      backend->abort();
    } catch (const std::exception&) {
      // the others are to be aborted, too
    }
  }
}

void NcclSide::shutdown() {
  const std::lock_guard lock(enqueue_mutex_);
  {
    std::shared_ptr<Gpu> released;
    const std::lock_guard state_lock(mutex_);
    released.swap(gpu_);
  }
  last_ = nullptr;
  if (!closed_.exchange(true)) {
    for (const BackendPtr& backend : all()) {
      backend->shutdown();
    }
  }
}

std::vector<NcclSide::Named> NcclSide::tiers() const {
  std::vector<Named> tiers;
  for (const Named& tier : {Named{"intra", parts_.intra}, Named{"inter", parts_.inter},
                            Named{"gather_intra", parts_.gather_intra}, Named{"gather_inter", parts_.gather_inter}}) {
    if (tier.second) {
      tiers.push_back(tier);
    }
  }
  return tiers;
}

std::vector<BackendPtr> NcclSide::all() const {
  std::vector<BackendPtr> all{parts_.world};
  for (const auto& [name, backend] : tiers()) {
    all.push_back(backend);
  }
  return all;
}

std::shared_ptr<Gpu> NcclSide::gpu() const {
  const std::lock_guard lock(mutex_);
  return gpu_;
}

Gpu& NcclSide::gpu_for(at::Device device) {
  auto found = gpu();
  if (!found) {
    found = make_gpu(device);
    const std::lock_guard lock(mutex_);
    gpu_ = found;
  }
  TORCH_CHECK_VALUE(found->device == device, "isthmus: this process group works on ", found->device,
                    " in this process, and got a tensor on ", device);
  return *found;
}

std::shared_ptr<Gpu> NcclSide::make_gpu(at::Device device) const {
  const c10::cuda::CUDAGuard on_device(device);
  const auto gpu_device = std::make_shared<TorchCudaDevice>(device.index());
  Tiers tiers;
  tiers.intra = make_tier("intra", parts_.intra, device, false);
  tiers.inter = make_tier("inter", parts_.inter, device, true);
  tiers.gather_intra = make_tier("gather_intra", parts_.gather_intra, device, false);
  tiers.gather_inter = make_tier("gather_inter", parts_.gather_inter, device, true);
  const auto communicator = std::make_shared<Communicator>(map_, rank_, tiers, options_, gpu_device);
  const CudaPlace place{gpu_device, c10::cuda::getStreamFromPool(false, device.index()), works_block()};
  return std::make_shared<Gpu>(Gpu{device, place, communicator});
}

std::shared_ptr<Transport> NcclSide::make_tier(const char* name, const BackendPtr& backend, at::Device device,
                                               bool between_nodes) const {
  if (!backend) {
    return nullptr;
  }
  return std::make_shared<NcclTier>(name, backend, device, between_nodes);
}

}  // namespace

std::unique_ptr<CudaSide> make_cuda_side(CudaParts parts, NodeMap map, int rank, isthmus::Options options) {
  return std::make_unique<NcclSide>(std::move(parts), std::move(map), rank, std::move(options));
}

}  // namespace isthmus::torch_backend
