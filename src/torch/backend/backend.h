// The c10d backend: decides for each call whether it takes the two-tier path or goes to the world backend.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <variant>
#include <vector>

#include "auto/chooser.h"
#include "isthmus/communicator.h"
#include "torch/backend/options.h"
#include "torch/cuda/cuda_side.h"
#include "torch/faults/fault_board.h"
#include "torch/module/own_process.h"
#include "torch/sides/c10d_transport.h"
#include "torch/units/unit_tracking.h"
#include "torch/works/exposure.h"
#include "torch/works/work.h"

// The other names in *_single that newer torches call forward to the old ones.
#define ISTHMUS_TORCH_HAS_GATHER_SINGLE (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15)

namespace isthmus::torch_backend {

// A tier: an ordinary backend, or a transport of another kind. Null: it has one rank.
using TierParts = std::variant<BackendPtr, std::shared_ptr<MessageTransport>>;

// What a backend is made of, which Python constructs.
struct BackendParts {
  c10::intrusive_ptr<c10d::Store> store;  // under a prefix of this group's own
  int rank = 0;
  int size = 1;
  c10::intrusive_ptr<BackendOptions> options;  // with the group's timeout and global ranks
  std::vector<int> node_of_rank;
  std::string node_map_source;  // where node_of_rank comes from, for people
  BackendPtr world;
  TierParts intra;
  TierParts inter;
  TierParts flat;
  std::optional<CudaParts> cuda;
  std::string no_cuda;     // why there are none, for people: "rank 3 has no GPU"
  bool covers_job = true;  // no rank of the job is outside of this group
};

// A snapshot for isthmus.stats().
struct BackendStats {
  std::string node_map;
  std::string node_map_source;
  std::string options;
  std::map<std::string, int64_t> calls;  // as they arrived from torch
  isthmus::Stats path;                   // of the two-tier path, on all devices, with this class's own exact calls
  std::map<std::string, isthmus::Stats> devices;  // of it on each: "cpu", "cuda:0"
  std::vector<std::string> notes;
};

// Why a reduction in a backward pass that nobody labels, tags or declares a gradient goes to the world backend.
inline constexpr const char* kUnlabelled = "not labelled, in a backward pass";
// Why collectives go there with codec=auto.
inline constexpr const char* kWorldFaster = "the world backend is faster";
inline constexpr const char* kWorldGathersFaster = "the world backend gathers faster";

// Constructs a backend over some ranks of another one; set by Python, which alone can construct Gloo backends.
using SplitFunction = std::function<BackendPtr(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               const c10::intrusive_ptr<c10d::Backend::Options>& options)>;
void set_split_function(SplitFunction function);

// Shuts down every backend of this process that still runs. For the interpreter's exit.
void shutdown_all();

class BackendIsthmus;

// What Python alone knows of reductions that FSDP labels, asked by the thread that makes the call. Without them FSDP2's
// units cannot be told apart.
struct FsdpFunctions {
  std::function<Fsdp2Caller()> fsdp2_caller;
  std::function<const char*(const at::Tensor& flat_parameter)> why_fsdp1_is_exact;  // null: it need not be
};
void set_fsdp_functions(FsdpFunctions functions);

// A unit's state with memory of its own. See UnitState.
struct SavedUnit {
  UnitKey key;
  uint64_t step = 0;
  double scale = 0;
  at::Tensor residual;         // float32, 1-D; undefined: none
  at::Tensor result_residual;  // the same
};

// On the CPU recognised gradient reductions and large all-gathers run on one worker thread in the order of their calls;
// that thread alone uses the tiers. Everything else is forwarded to the world backend from the caller's thread. CUDA
// tensors have a world backend and tiers of their own (CudaSide), and everything is enqueued by the caller's thread.
//
// A process that is forked from the one that made a backend has no part in its group: calls throw there. shutdown() and
// abort() do nothing and the backend is never destroyed, so that the process can end and leaves the parent's
// connections alone.
class BackendIsthmus final : public c10d::Backend, public FaultHandler {
 public:
  explicit BackendIsthmus(BackendParts parts);
  ~BackendIsthmus() override;  // NOLINT(bugprone-exception-escape): see there

  BackendStats stats();
  void reset_stats();
  void keep_for_ever();  // called in a forked child
  const std::vector<int>& node_of_rank() const { return map_.node_of_rank(); }
  const std::vector<int>& global_ranks() const { return global_ranks_; }

  // State of units, for checkpoints and loss scales, of the CPU and the GPU. In program order with the collectives;
  // each blocks until it is done. Without two tiers there is none. Not collective, but ranks that are to stay alike
  // call them alike. Loaded units go to the device that reduces gradients next.
  std::vector<SavedUnit> unit_states();
  void load_unit(const SavedUnit& unit);
  void clear_units();
  void scale_residuals(double factor);
  void count_step();
  void count_skipped_step();
  // Option `gradients` of this group from now on. Every rank calls it at the same place.
  void set_gradients(const std::string& mode);

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  // As the world backend: torch loses later collectives where a call raises between start and end, as in a
  // batch_isend_irecv of what cannot be sent, and does not start where this is false.
  // NCCL's backend does, and needs it: messages that are not started together wait for each other.
  bool supportsCoalescing() const override { return coalesces_ || cuda_; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  BackendPtr split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& options) override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;  // collectives so far, on either path
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;                                  // waits for the operations that were submitted
  void shutdown_within(std::chrono::milliseconds patience);  // aborts those that take longer

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

  // What the world backend can do, this one can: that of CUDA tensors, if there is one.
  bool supportsTimeEstimation() const override { return estimates_time_; }
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  void enableCollectivesTiming() override;
  void eagerConnectSingleDevice(at::Device device) override;
  void setGroupUid(const std::string& uid) override;

 private:
  // A reduction that takes the two-tier path.
  struct Gradient {
    UnitKey unit;
    double scale = 1;
    const char* why_exact = nullptr;
    bool by_world = false;  // codec=auto leaves it to the world backend
  };
  // What the worker thread does next.
  struct Job {
    FaultReport operation;  // without phase and error
    std::chrono::milliseconds timeout{0};
    c10::intrusive_ptr<WorkerWork> work;
    std::function<void(Communicator&)> run;
    bool sends = true;  // else it is this rank's own affair, and its failure, too
    std::optional<uint64_t> exposed_unit;
  };

  void start_threads();
  void make_communicator(const BackendParts& parts);
  std::shared_ptr<MessageTransport> make_tier(const char* name, const TierParts& parts,
                                              const std::vector<int>& group_ranks);

  bool two_tier() const { return map_.two_tier(); }
  bool idle() const { return jobs_.empty() && !running_; }  // under mutex_
  // The gradient that is reduced, if it is one; else why not is counted. All-reduce: output and input are one tensor.
  std::optional<Gradient> recognise(const at::Tensor& output, const at::Tensor& input, Collective collective,
                                    const c10d::ReduceOp& op);
  const char* why_not_recognised(const ReductionCall& call, const at::Tensor& output, const at::Tensor& input,
                                 bool reducible) const;
  bool takes_two_tiers(const at::Tensor& output, const at::Tensor& input);
  // codec=auto: whether it is left to the world backend; then that is counted. The first calls measure, and block.
  bool world_reduces_faster(const Gradient& gradient, const at::Tensor& input);
  bool world_gathers_faster(const at::Tensor& output);
  const Measurements* measurements(const at::Tensor& like);
  Measurements measure_tiers(DataType dtype);
  void measure_world(DataType dtype, LinkSpeeds& links);
  WorkPtr reduce_scatter_by_world(at::Tensor& output, at::Tensor& product, const c10d::ReduceScatterOptions& options);
  WorkPtr reduce_scatter_gradient(const at::Tensor& output, const at::Tensor& input, const Gradient& gradient,
                                  const c10d::ReduceScatterOptions& options);
  WorkPtr all_reduce_gradient(const at::Tensor& tensor, const Gradient& gradient,
                              const c10d::AllreduceOptions& options);
  WorkPtr submit_reduction(TwoTierCall call, const Gradient& gradient);
  WorkPtr submit_reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Gradient& gradient,
                                std::chrono::milliseconds timeout);
  WorkPtr submit_all_reduce(const at::Tensor& tensor, const Gradient& gradient, std::chrono::milliseconds timeout);
  WorkPtr submit_all_gather(const at::Tensor& output, const at::Tensor& input, std::chrono::milliseconds timeout);
  WorkPtr gather_into(at::Tensor output, at::Tensor input, const c10d::AllgatherOptions& options);  // either way
  WorkPtr submit(TwoTierCall call);
  WorkPtr queue(Job job);             // for the worker
  WorkPtr enqueue(TwoTierCall call);  // on the GPU
  WorkPtr combined(c10d::OpType type, std::vector<WorkPtr> works, const std::vector<at::Tensor>& outputs) const;

  // Runs `action` on this rank's communicators, after what was submitted before, and waits for it. Nothing without two
  // tiers.
  void run_between_collectives(const char* name, const std::function<void(Communicator&)>& action);
  void run_on_worker(const char* name, const std::function<void(Communicator&)>& action);
  void run_on_side(bool gpu, const char* name, const std::function<void(Communicator&)>& action);
  void bring_loaded_units(bool to_gpu);

  // Every call arrives here first. Throws if this backend has failed or is shut down, or has no part for CUDA tensors.
  void arrived(const char* call, bool cuda);          // a collective
  void message_arrived(const char* call, bool cuda);  // between two ranks
  void require_cuda(const char* call) const;
  void note_gpu_call(const char* call);
  FaultReport last_gpu_call(std::string error);
  void throw_gpu_fault(FaultReport report);  // if there is one; then the group has failed, in this operation
  // Calls the world backend. Its Work is watched, and part of what startCoalescing() began.
  WorkPtr forward(bool cuda, const std::function<WorkPtr(c10d::Backend&)>& call);
  WorkPtr issued(WorkPtr work, bool in_cuda_group);
  bool open_cuda_group();   // whether one is open now: only while coalescing
  void close_cuda_group();  // what is in it starts
  BackendPtr world_backend();
  BackendPtr device_backend();  // of the GPU, if there is one
  std::optional<at::Device> bound_device();
  void require_usable() const;                              // under mutex_
  std::vector<std::string> notes(const Stats& path) const;  // under mutex_
  void count_exact(const char* reason);
  void describe_world_backends();  // under mutex_
  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout);

  void run_worker();
  void run_job(Job& job);
  // After an operation failed: closes all connections, asks the other ranks, and makes this backend fail from now on.
  std::exception_ptr explain(const FaultReport& report);
  std::exception_ptr explain(c10d::OpType operation, uint64_t sequence_number, const std::string& error) override;
  void wait_begins() override;
  void wait_ends() override;
  void throw_if_failed(c10d::OpType operation, uint64_t sequence_number) override;
  // Looks for other ranks' reports while an operation takes long, or may do so on the GPU, and for what the GPU found.
  void run_watch();
  bool look_is_due();  // under mutex_
  void look_for_failures(bool at_board);
  void drain_gpu(std::chrono::milliseconds patience);
  void fail_from_now_on(std::exception_ptr error);
  void close_all_connections();

  const OwnProcess process_;
  const c10::intrusive_ptr<BackendOptions> options_;  // torch and its users see these
  const isthmus::Options values_;                     // as they were when all ranks agreed on them
  const NodeMap map_;
  const std::string node_map_source_;
  const bool coalesces_;  // the world backend does, and so on
  const bool estimates_time_;
  std::vector<int> global_ranks_;
  std::unique_ptr<FaultBoard> board_;
  const std::string no_cuda_;
  const std::unique_ptr<CudaSide> cuda_;  // null: for CPU tensors alone
  std::vector<std::shared_ptr<MessageTransport>> transports_;
  std::unique_ptr<Communicator> communicator_;                               // null where there are no two tiers
  const std::shared_ptr<Exposure> exposure_ = std::make_shared<Exposure>();  // codec=auto; Works may outlive this

  std::mutex mutex_;                      // guards what follows
  std::condition_variable worker_wakes_;  // a job came, or stopping_
  std::condition_variable watch_wakes_;   // stopped_; else it wakes by the clock, so that waits cost nothing
  std::condition_variable idle_;          // idle() while stopping_
  BackendPtr world_;                      // null after shutdown
  std::deque<Job> jobs_;
  bool running_ = false;  // a job
  int busy_ = 0;          // operations that somebody waits for
  Clock::time_point busy_since_;
  FaultReport gpu_call_;                         // the last for CUDA tensors
  std::chrono::milliseconds gpu_look_pause_{0};  // 0: there was none
  Clock::time_point next_gpu_look_;
  bool stopping_ = false;
  bool stopped_ = false;  // and nothing is under way any more
  std::exception_ptr failure_;
  uint64_t next_sequence_number_ = 0;
  bool described_ = false;
  UnitTracker units_;
  std::string gradients_;  // option `gradients`, as it is now
  bool coalescing_ = false;
  bool cuda_group_open_ = false;
  std::vector<WorkPtr> coalesced_;
  bool units_on_gpu_;                 // the last reduction was there
  bool units_loaded_ = false;         // since then
  std::optional<at::Device> device_;  // that the group is bound to
  std::map<std::string, int64_t> calls_;
  std::map<std::string, int64_t> exact_calls_;
  std::map<DataType, Measurements> measurements_;  // codec=auto
  std::map<uint64_t, UnitStats> world_units_;      // that it leaves to the world backend

  std::mutex explain_mutex_;
  std::mutex shutdown_mutex_;
  std::thread worker_;
  std::thread watch_;
};

}  // namespace isthmus::torch_backend
