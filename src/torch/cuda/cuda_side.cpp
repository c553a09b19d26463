#include "torch/cuda/cuda_side.h"

#include <ATen/record_function.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "isthmus/error.h"
#include "torch/cuda/cuda_work.h"
#include "torch/cuda/torch_cuda_device.h"
#include "transport/message_transport.h"  // Clock
#include "transport/nccl.h"

namespace isthmus::torch_backend {
namespace {

// Returns whether torch's variables let Works of NCCL block the host.
bool works_block() { return c10d::getCvarBool({"TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"}, false); }

constexpr std::chrono::milliseconds kDrainPause{1};

// One GPU, and what runs there.
struct Gpu {
  at::Device device;
  CudaPlace place;
  Tiers tiers;
  std::shared_ptr<Communicator> communicator;
};

struct Pending {
  EventPtr done;  // null: it is being enqueued, for which the host may wait
  std::chrono::milliseconds patience;
  Clock::time_point deadline;
  FaultReport call;
};

// The first rank of a tier draws its id and leaves it in the store for the others.
NcclIdOf meet_at(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds timeout) {
  return [store, timeout](const std::string& key, bool draws) {
    ncclUniqueId id;
    if (draws) {
      id = draw_nccl_id();
      store->set(key, std::vector<uint8_t>(id.internal, id.internal + sizeof(id.internal)));
      return id;
    }
    const auto own = store->clone();  // with a connection of its own, which this thread keeps while it waits
    own->setTimeout(timeout);
    const std::vector<uint8_t> drawn = own->get(key);
    ISTHMUS_CHECK(Error, drawn.size() == sizeof(id.internal), "an id of NCCL has ", drawn.size(), " bytes");
    std::copy(drawn.begin(), drawn.end(), id.internal);
    return id;
  };
}

// Returns whether NCCL, or the store at which its ranks meet, has raised an error of a world backend. The newer of
// torch's two kinds raises errors of NCCL that have no base but std::exception, and others for arguments.
bool is_failure_of_nccl(const std::exception& error) {
  const bool is_torchs = dynamic_cast<const c10::Error*>(&error) != nullptr;
  const bool is_usual = dynamic_cast<const std::runtime_error*>(&error) != nullptr ||
                        dynamic_cast<const std::logic_error*>(&error) != nullptr;
  return dynamic_cast<const c10::DistError*>(&error) != nullptr || !(is_torchs || is_usual);
}

// Locks: `mutex_` may be taken under `enqueue_mutex_`; neither is held while a failure is explained.
class CudaSide final : public Side {
 public:
  CudaSide(const Group& group, CudaParts parts, FaultWatch& faults, CallCounters& counters)
      : group_(group), parts_(std::move(parts)), faults_(faults), counters_(counters) {}

  WorldAbilities abilities() const override {
    return {.premultiplied_sums = true,
            .checks_layouts = true,
            .all_to_all_of_lists = true,
            .coalesced_gathers = true,
            .groups = true};
  }

  void arrived(const char* call) override {
    const FaultReport report{.sequence_number = counters_.next_sequence_number(), .operation = call};
    note(report);
    faults_.look_soon();
    throw_if_faulted(report);
  }

  BackendPtr world() override { return parts_.world; }

  WorkPtr call_world(const std::function<WorkPtr(c10d::Backend&)>& call) override {
    try {
      WorkPtr work = call(*parts_.world);
      watch_world();
      return work;
    } catch (const std::exception& error) {
      if (!is_failure_of_nccl(error)) {
        throw;
      }
      FaultReport report = last_call();
      report.error = first_line(error.what());
      std::rethrow_exception(faults_.explain(report));
    }
  }

  WorkPtr submit(TwoTierCall call) override {
    faults_.require_usable();
    call.operation.sequence_number = counters_.take_sequence_number();
    note(call.operation);
    return explained(call.operation, [&]() -> WorkPtr {
      std::optional<CudaPlace> place;
      WeightGatherPtr gather;
      EventPtr done = enqueue(call, [&](const Gpu& here, Stream stream) {
        place = here.place;
        if (!call.begin) {
          return copy_back(call, call.run(*here.communicator, stream), here.place);
        }
        gather = call.begin(*here.communicator, stream);
        return gather->begun();
      });
      const Watcher watcher = faults_.watcher(call.operation.sequence_number);
      std::function<EventPtr()> second_half;
      if (gather != nullptr && call.in_halves) {
        second_half = [this, call, gather, owner = watcher.owner] {
          const auto alive = owner.lock();
          TORCH_CHECK_WITH(DistBackendError, alive, "isthmus: the process group of a gather of weights is gone");
          faults_.require_usable();
          return explained(call.operation, [&] { return finish(call, gather); });
        };
      } else if (gather != nullptr) {
        done = finish(call, gather);
      }
      return c10::make_intrusive<CudaWork>(group_.rank, call, std::move(done), *place, watcher, std::move(second_half));
    });
  }

  // NCCL's barrier, like all its operations, begins behind the current stream: so when it ends, the operations before
  // it have ended on all ranks.
  WorkPtr submitted() override {
    if (const auto found = gpu()) {
      const c10::cuda::CUDAGuard on_device(found->device);
      const Stream stream{c10::cuda::getCurrentCUDAStream(found->device.index()).stream()};
      const std::lock_guard lock(mutex_);
      for (const Pending& pending : pending_) {
        if (pending.done != nullptr) {
          found->place.device->wait(pending.done, stream);
        }
      }
    }
    return nullptr;
  }

  // Runs the action in the calling thread; no other thread enqueues meanwhile.
  WorkPtr run_between_collectives(const char* /*name*/, std::function<void(Communicator&)> action) override {
    faults_.require_usable();
    const std::lock_guard lock(enqueue_mutex_);
    const auto found = gpu();
    Gpu& here = found ? *found : gpu_for({at::kCUDA, c10::cuda::current_device()});
    const c10::cuda::CUDAGuard on_device(here.device);
    action(*here.communicator);
    return nullptr;
  }

  bool has_communicator() const override { return gpu() != nullptr; }

  std::optional<SideStats> stats() override {
    const auto found = gpu();
    if (!found) {
      return std::nullopt;
    }
    return SideStats{found->device.str(), found->communicator->stats()};
  }

  void reset_stats() override {
    if (const auto found = gpu()) {
      found->communicator->reset_stats();
    }
  }

  void connect(at::Device device) override {
    const std::lock_guard lock(enqueue_mutex_);
    if (group_.two_tier()) {
      gpu_for(device);
    }
    if (group_.owns_worlds) {
      parts_.world->eagerConnectSingleDevice(device);
    }
  }

  void set_timeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
    if (group_.owns_worlds) {
      parts_.world->setTimeout(timeout);
    }
  }

  FaultReport last_call() const override {
    const std::lock_guard lock(mutex_);
    return last_call_;
  }

  void throw_if_faulted(const FaultReport& operation) override {
    const auto found = gpu();
    if (!found) {
      return;
    }
    try {
      found->communicator->throw_if_faulted();  // the device may have found a fault, or a tier have failed
      ISTHMUS_CHECK(TransportError, !world_has_failed(), "the world backend: NCCL reports an error");
    } catch (const std::exception& error) {
      FaultReport report = operation;
      report.error = first_line(error.what());
      std::rethrow_exception(faults_.explain(report));
    }
  }

  // Asks the GPU without the lock, as it may take moments to answer.
  std::optional<FaultReport> overdue() override {
    const auto found = gpu();
    while (found) {
      Pending first;
      {
        const std::lock_guard lock(mutex_);
        if (pending_.empty()) {
          return std::nullopt;
        }
        first = pending_.front();
      }
      try {
        if (first.done == nullptr || !found->place.device->done(first.done)) {
          if (Clock::now() < first.deadline) {
            faults_.look_while_busy();
            return std::nullopt;
          }
          first.call.error = detail::concatenate("not done after ", first.patience.count(), " ms");
          return first.call;
        }
      } catch (const Error& error) {
        return failure_of_gpu(error);
      }
      const std::lock_guard lock(mutex_);
      if (pending_.size() == 1) {  // it stays, to ask the GPU whether it works
        return std::nullopt;
      }
      pending_.pop_front();
    }
    return std::nullopt;
  }

  // As torch leaves its own backends: NCCL waits without limit where a CUDA graph refers to a communicator.
  void leave() override {
    closed_ = true;
    if (const auto found = gpu()) {
      for (const auto& tier : found->tiers.all()) {
        static_cast<NcclTransport&>(*tier).leave();
      }
    }
  }

  // FaultWatch's thread keeps running: if a peer has failed, it aborts operations that would never end.
  bool wait_until_idle(std::chrono::milliseconds patience) override {
    const bool for_ever = patience == std::chrono::milliseconds::max();
    const auto deadline = for_ever ? Clock::time_point::max() : Clock::now() + patience;
    try {
      while (!idle() && !faults_.has_failed()) {
        if (Clock::now() >= deadline) {
          return false;
        }
        std::this_thread::sleep_for(kDrainPause);
      }
    } catch (const Error& error) {
      std::rethrow_exception(faults_.explain(failure_of_gpu(error)));
    }
    return true;
  }

  void run_at_end(const std::function<void(Communicator&)>& action) override {
    if (const auto found = gpu()) {
      const c10::cuda::CUDAGuard on_device(found->device);
      action(*found->communicator);
    }
  }

  // A thread may be blocked in the communicator until this. All of NCCL's communicators are aborted once, and in
  // parallel: an abort may wait for the GPU, which another communicator's operation occupies until its own abort flag
  // is set. An abort that does not end is abandoned with its thread.
  void abort() override {
    if (closed_.exchange(true)) {
      return;
    }
    std::vector<std::function<void()>> ends;
    if (group_.owns_worlds) {
      ends.emplace_back([world = parts_.world] { world->abort(); });
    }
    const auto found = gpu();
    found ? found->communicator->abort(std::move(ends)) : void(run_in_threads(std::move(ends), kAbortPatience));
  }

  // The communicators end side by side, each in its own thread: NCCL waits for CUDA graphs that refer to one, and for
  // peers. What does not end is left to the process.
  void shutdown() override {
    const std::lock_guard lock(enqueue_mutex_);
    std::shared_ptr<Gpu> released;
    {
      const std::lock_guard state_lock(mutex_);
      released.swap(gpu_);
      pending_.clear();
    }
    last_ = nullptr;
    std::vector<std::function<void()>> ends;
    if (released && !gpu_works_) {  // no memory can be freed: it is left to the process
      new std::shared_ptr<Gpu>(std::exchange(released, nullptr));
    }
    if (released) {  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): see above
      ends.emplace_back([gpu = std::exchange(released, nullptr)] {});  // the action owns it, and ends with it
    }
    if (!closed_.exchange(true) && group_.owns_worlds) {
      ends.emplace_back([world = parts_.world] { world->shutdown(); });
    }
    run_in_threads(std::move(ends), kAbortPatience);
  }

 private:
  // Returns what body() does. If it throws, the group has failed, but for refusals of arguments.
  template <typename Body>
  std::invoke_result_t<Body> explained(const FaultReport& call, const Body& body) {
    try {
      return body();
    } catch (const std::exception& error) {
      const auto found = gpu();
      if (is_refusal(error, found ? found->communicator.get() : nullptr)) {
        throw;
      }
      FaultReport report = call;
      report.phase = found ? to_string(found->communicator->phase()) : "";
      report.error = first_line(error.what());
      std::rethrow_exception(faults_.explain(report));
    }
  }

  // Watches the event of what body(gpu, current stream) enqueues, and returns it.
  template <typename Body>
  EventPtr enqueue(const TwoTierCall& call, const Body& body) {
    const std::lock_guard lock(enqueue_mutex_);
    Gpu& here = gpu_for(call.output.device());
    const c10::cuda::CUDAGuard on_device(here.device);
    RECORD_FUNCTION(call.title, std::vector<c10::IValue>{call.input});
    Pending& watched = watch(call.operation, nullptr, call.timeout);
    EventPtr done = here.place.device->make_event();  // unless it is recorded, it counts as passed
    const auto ends = c10::make_scope_exit([&] {
      const std::lock_guard state_lock(mutex_);
      watched.done = done;
    });
    last_ = body(here, Stream{c10::cuda::getCurrentCUDAStream(here.device.index()).stream()});
    done = last_;
    return done;
  }

  // The second half of a gather. Others may enqueue while it waits.
  EventPtr finish(const TwoTierCall& call, const WeightGatherPtr& gather) {
    const auto alive = gpu();
    if (alive) {
      gather->wait_for_headers();
    }
    return enqueue(call,
                   [&](const Gpu& here, Stream /*stream*/) { return copy_back(call, gather->finish(), here.place); });
  }

  // Returns the event of the call with the copy that it may need.
  static EventPtr copy_back(const TwoTierCall& call, const EventPtr& done, const CudaPlace& place) {
    if (call.written.is_same(call.output)) {
      return done;
    }
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

  // Watches what the world backend has just enqueued on the current stream, or lets it wait for. If nothing has waited
  // for an operation yet, the next call sees it.
  void watch_world() {
    const auto found = gpu();
    if (!found) {
      return;
    }
    const c10::cuda::CUDAGuard on_device(found->device);
    EventPtr done = found->place.device->make_event();
    found->place.device->record(done, {c10::cuda::getCurrentCUDAStream(found->device.index()).stream()});
    watch(last_call(), std::move(done), kLongestTimeout);
  }

  void note(const FaultReport& call) {
    const std::lock_guard lock(mutex_);
    last_call_ = call;
  }

  Pending& watch(const FaultReport& call, EventPtr done, std::chrono::milliseconds timeout) {
    const auto patience = without_abort(std::min(timeout, timeout_.load()));
    const std::lock_guard lock(mutex_);
    return pending_.emplace_back(Pending{std::move(done), patience, Clock::now() + patience, call});
  }

  // Backends that do not tell throw.
  bool world_has_failed() const {
    try {
      return parts_.world->getError() != c10d::ErrorType::SUCCESS;
    } catch (const c10::Error&) {
      return false;
    }
  }

  FaultReport failure_of_gpu(const Error& error) {
    gpu_works_ = false;
    FaultReport report = last_call();
    report.error = first_line(error.what());
    return report;
  }

  // Returns whether all enqueued work is done, as far as it can tell without waiting.
  bool idle() {
    const std::unique_lock lock(enqueue_mutex_, std::try_to_lock);
    if (!lock) {
      return false;
    }
    const auto found = gpu();
    return !found || !last_ || found->place.device->done(last_);
  }

  std::shared_ptr<Gpu> gpu() const {
    const std::lock_guard lock(mutex_);
    return gpu_;
  }

  // The caller holds enqueue_mutex_.
  Gpu& gpu_for(at::Device device) {
    auto found = gpu();
    if (!found) {
      found = make_gpu(device);
      const std::lock_guard lock(mutex_);
      gpu_ = found;
    }
    if (closed_) {  // by an abort that has not seen these tiers
      found->communicator->abort();
    }
    TORCH_CHECK_VALUE(found->device == device, "isthmus: this process group works on ", found->device,
                      " in this process, and got a tensor on ", device);
    return *found;
  }

  std::shared_ptr<Gpu> make_gpu(at::Device device) const {
    const c10::cuda::CUDAGuard on_device(device);
    const auto gpu_device = std::make_shared<TorchCudaDevice>(device.index(), group_.options.device_timings);
    const auto timeout = timeout_.load();
    Tiers tiers;
    if (group_.two_tier()) {
      tiers = nccl_tiers_when_used(group_.rank, group_.map, group_.global_ranks, device.index(),
                                   meet_at(parts_.store, timeout), timeout,
                                   /*with_flat=*/group_.options.is_flat());
    }
    const auto communicator =
        std::make_shared<Communicator>(group_.map, group_.rank, tiers, group_.options, gpu_device);
    const CudaPlace place{gpu_device, c10::cuda::getStreamFromPool(false, device.index()), works_block()};
    return std::make_shared<Gpu>(Gpu{device, place, tiers, communicator});
  }

  const Group& group_;
  const CudaParts parts_;
  FaultWatch& faults_;
  CallCounters& counters_;

  std::atomic<bool> closed_{false};                                  // aborted, or shut down
  std::atomic<bool> gpu_works_{true};                                // as far as it has been asked
  std::atomic<std::chrono::milliseconds> timeout_{kLongestTimeout};  // of the group

  std::mutex enqueue_mutex_;  // held by the enqueueing thread, for as long as NCCL blocks it
  EventPtr last_;             // under enqueue_mutex_

  mutable std::mutex mutex_;  // guards the members below, for moments only
  std::shared_ptr<Gpu> gpu_;  // null until a device is known, and after shutdown()
  FaultReport last_call_;
  std::deque<Pending> pending_;  // in call order; overdue() removes those that are done
};

}  // namespace

std::unique_ptr<Side> make_cuda_side(const Group& group, CudaParts parts, FaultWatch& faults, CallCounters& counters) {
  return std::make_unique<CudaSide>(group, std::move(parts), faults, counters);
}

}  // namespace isthmus::torch_backend
