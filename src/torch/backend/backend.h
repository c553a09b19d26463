// The c10d backend: each of torch's calls takes the two-tier path or goes to the world backend.
#pragma once

#include <torch/headeronly/version.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "isthmus/stats.h"
#include "torch/backend/device_units.h"
#include "torch/base/border.h"
#include "torch/base/call_counters.h"
#include "torch/base/group.h"
#include "torch/cuda/cuda_side.h"
#include "torch/faults/fault_watch.h"
#include "torch/sides/cpu_side.h"
#include "torch/units/gradient_recogniser.h"
#include "torch/works/work.h"

// Newer torches call further functions named *_single, which forward to the old ones.
#define ISTHMUS_TORCH_HAS_GATHER_SINGLE (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15)

namespace isthmus::torch_backend {

// What Python passes to a new backend.
struct BackendParts {
  c10::intrusive_ptr<c10d::Store> store;  // under a prefix that this group alone uses
  int rank = 0;
  int size = 1;
  c10::intrusive_ptr<BackendOptions> options;  // with the group's timeout and global ranks
  std::vector<int> node_of_rank;
  std::string node_map_source;  // tells people where node_of_rank comes from
  CpuParts cpu;
  CudaParts cuda;           // without a world: none
  std::string no_cuda;      // tells people why: "rank 3 has no GPU"
  bool covers_job = true;   // the group has all ranks of the job
  bool beyond_job = false;  // its ranks are not known to be ranks of one job
  bool owns_worlds = true;  // see Group
};

// A snapshot for isthmus.stats().
struct BackendStats {
  std::string node_map;
  std::string node_map_source;
  std::string options;
  std::map<std::string, int64_t> calls;           // as they arrived from torch
  std::map<std::string, WorldCalls> world;        // those that the world backends carry
  isthmus::Stats path;                            // the two-tier path on all devices, with the backend's exact calls
  std::map<std::string, isthmus::Stats> devices;  // the two-tier path on each device: "cpu", "cuda:0"
  double ran_s = 0;                               // see SideStats
  double waited_s = 0;
  std::string one_tier;  // why the group has no two tiers; empty: it has
};

// Shuts down every backend of this process that still runs. Called at the interpreter's exit.
void shutdown_all();

// Constructs a backend over some ranks of another one. Python sets it, since only Python can construct Gloo backends.
// Like all functions that Python sets, it is never destroyed: other threads may run until the process ends.
using SplitFunction =
    std::function<BackendPtr(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                             const c10::intrusive_ptr<c10d::Backend::Options>& options, bool beyond_job)>;
inline auto& split_function = *new SplitFunction;

// Torch's shutdown() calls it first, while everything still exists. Destructors and the interpreter's exit do not call
// it. Python sets it before the first group is made.
class BackendIsthmus;
inline auto& shutdown_listener = *new std::function<void(BackendIsthmus& backend)>;

// Each override of a torch call records that the call has arrived, finds the side of its tensors, and passes it to that
// side's two tiers or to its world backend. CpuSide and make_cuda_side() say which thread runs what.
//
// Calls throw in a process that was forked from the one that made the backend. There, shutdown() and abort() do nothing
// and the backend is never destroyed, so that the child can end without touching the parent's connections.
//
// Locks: `shutdown_mutex_` is held while threads end and connections close, `mutex_` for moments, never while a world
// backend runs. The members have their own locks: UnitRegistry, GradientRecogniser and CallCounters take no other lock
// under theirs; CpuSide and FaultWatch state their order.
class BackendIsthmus final : public c10d::Backend {
 public:
  explicit BackendIsthmus(BackendParts parts);
  ~BackendIsthmus() override;  // NOLINT(bugprone-exception-escape): see there

  BackendStats stats();
  void reset_stats();
  const std::vector<int>& node_of_rank() const { return group_.map.node_of_rank(); }
  const std::vector<int>& global_ranks() const { return group_.global_ranks; }
  bool beyond_job() const { return beyond_job_; }
  // The state of units, for checkpoints and loss scales.
  DeviceUnits& units() { return units_; }
  UnitRegistry& registry() { return *registry_; }

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  // Returns what the world backend returns. If this is false, torch does not start coalescing; if it is true, torch
  // loses later collectives when a call raises between start and end, as in a batch_isend_irecv of an unsupported
  // tensor. NCCL's backend needs it: messages that are not started together wait for each other.
  bool supportsCoalescing() const override { return coalesces_ || cuda_; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  BackendPtr split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& options) override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}    // torch before 2.15 calls it; numbers begin at 0
  uint64_t getSequenceNumberForGroup() override;  // number of collectives so far, on either path
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;  // waits for the operations that were submitted; throws if a GPU has failed, when all ended
  // Aborts the group, ends its threads, closes its connections, and returns the states that its units had, before the
  // step that is under way if `undo`. The group may have failed before.
  std::vector<UnitState> end(bool undo);
  // The error that made the group fail; "" if none did.
  std::string failure();
  // At the end of the process: waits so long at most, ends the threads, and leaves NCCL as it is.
  void shutdown_at_exit(std::chrono::milliseconds patience);

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(std::vector<at::Tensor>& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& options) override;
#if ISTHMUS_TORCH_HAS_GATHER_SINGLE
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override;
#endif
  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(std::vector<at::Tensor>& tensors, int destination, int tag) override;
  WorkPtr recv(std::vector<at::Tensor>& tensors, int source, int tag) override;
  WorkPtr recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // These ask the world backend; the one for CUDA tensors, if there is one.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  void enableCollectivesTiming() override;
  void eagerConnectSingleDevice(at::Device device) override;
  void setGroupUid(const std::string& uid) override;

 private:
  // Return the side that works on the tensors, those like the first one. Throw DistBackendError, which names `call`, if
  // there is none.
  Side& side_of(const char* call, const at::Tensor& tensor) { return tensor.is_cuda() ? cuda_side(call) : cpu_; }
  Side& side_of(const char* call, const std::vector<at::Tensor>& tensors) {
    return tensors.empty() ? cpu_ : side_of(call, tensors[0]);
  }
  Side& cuda_side(const char* call);
  // The first step of every call: returns the side of its tensors. Throws if the group has failed, is shut down, or has
  // no side for them.
  Side& arrived(const char* call, const auto& tensors) { return arrived_on(side_of(call, tensors), call); }
  Side& arrived_on(Side& side, const char* call, bool is_collective = true);

  // Makes the group fail, on all ranks, unless the tensors that the root gathers or scatters have the size and the type
  // of its own: it alone can know, and the others have begun.
  void require_equal_parts(const char* call, const std::vector<std::vector<at::Tensor>>& lists,
                           const std::vector<at::Tensor>& own, int root);

  // Calls the side's world backend and watches its Work. During coalescing, the Work joins it. name, crossing: as which
  // call it is counted, and what it carries over the node's border.
  WorkPtr forward(Side& side, const char* name, BorderTraffic crossing,
                  const std::function<WorkPtr(c10d::Backend&)>& call);
  // Does the same for an operation in two tiers.
  WorkPtr submit(Side& side, TwoTierCall call);
  bool open_group(c10d::Backend& world);  // returns whether one is open now; opens one only while coalescing
  void close_group();                     // starts the group's operations
  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const;

  // Returns the gradient that the call reduces, if it is one; otherwise counts the reason. In an all-reduce, output and
  // input are the same tensor.
  std::optional<Reduction> gradient_of(const at::Tensor& output, const at::Tensor& input, Collective collective,
                                       const c10d::ReduceOp& op);
  // side: the first tensor's.
  WorkPtr submit_reduction(Side& side, const at::Tensor& output, const at::Tensor& input, Reduction gradient,
                           std::chrono::milliseconds timeout);
  WorkPtr combined(c10d::OpType type, std::vector<WorkPtr> works, const std::vector<at::Tensor>& outputs) const;

  bool takes_two_tiers(const at::Tensor& output, const at::Tensor& input) const;
  // Returns the unit whose weights `output` will hold, where they cross as differences; null if it gathers no weights.
  UnitPtr unit_of_gather(const at::Tensor& output);
  WorkPtr gather_tensor(Side& side, at::Tensor output, at::Tensor input, const c10d::AllgatherOptions& options);
  // unit: the unit whose weights the call gathers; null if it gathers none.
  WorkPtr submit_gather(Side& side, const at::Tensor& output, const at::Tensor& input,
                        std::chrono::milliseconds timeout, const UnitPtr& unit);

  BackendPtr device_backend();  // the world backend of the GPU, if there is one
  std::optional<at::Device> bound_device();
  void bind(std::optional<at::Device> device);
  // Aborts operations that take longer. last: what is done before connections close. Throws the failure of a device
  // once all has ended.
  void shutdown_within(std::chrono::milliseconds patience, const std::function<void()>& last = {});
  void shutdown_or_warn(std::chrono::milliseconds patience);

  const c10::intrusive_ptr<BackendOptions> options_;  // torch and users see these; the timeout is under mutex_
  const Group group_;
  const Border border_{group_.map, group_.rank};
  const std::string node_map_source_;
  const bool beyond_job_;
  const bool coalesces_;  // whether the CPU's world backend supports coalescing

  CallCounters counters_;
  FaultWatch faults_;
  CpuSide cpu_;
  const std::unique_ptr<Side> cuda_;  // null if the group takes CPU tensors alone
  const std::string no_cuda_;         // see BackendParts
  const std::vector<Side*> sides_;    // the CPU's first
  const std::shared_ptr<UnitRegistry> registry_;
  GradientRecogniser recogniser_;
  DeviceUnits units_;

  std::mutex shutdown_mutex_;  // callers of shutdown() do its work one after the other
  std::once_flag described_;   // torch's flight recorder, which shows calls of the world backends, has the group's name

  mutable std::mutex mutex_;          // guards the members below
  std::optional<at::Device> device_;  // the device that the group is bound to
  bool coalescing_ = false;
  c10d::Backend* open_group_ = nullptr;  // the world backend that collects operations to start together; else null
  std::vector<WorkPtr> coalesced_;
};

}  // namespace isthmus::torch_backend
