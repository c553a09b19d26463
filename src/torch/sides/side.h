// The half of a process group that works on one kind of device: its world backend, and the two-tier path there.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "isthmus/communicator.h"
#include "torch/base/tensors.h"
#include "torch/faults/fault_watch.h"
#include "torch/works/work.h"

namespace isthmus::torch_backend {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// Features that only some world backends have.
struct WorldAbilities {
  bool premultiplied_sums = false;  // ReduceOp::PREMUL_SUM
  bool checks_layouts = false;      // takes or refuses a tensor by its strides and sizes; Gloo may misread its memory
  bool all_to_all_of_lists = false;
  bool coalesced_gathers = false;
  bool groups = false;  // calls between its startCoalescing() and endCoalescing() start together
};

// One operation of the two-tier path, on the CPU or on a GPU.
struct TwoTierCall {
  FaultReport operation;  // without phase and error
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;  // for profilers
  at::Tensor input;             // contiguous
  bool input_is_copy = false;   // nobody else holds it
  at::Tensor output;            // the caller's
  at::Tensor written;           // contiguous: `output` itself, or copied to it after the operation
  std::chrono::milliseconds timeout{0};
  std::function<EventPtr(Communicator&, Stream)> run;  // reads `input`, writes `written`
  // The first half of a gather of weights, in place of run().
  std::function<WeightGatherPtr(Communicator&, Stream)> begin;
  bool in_halves = false;  // on a GPU, whoever waits for the Work does the second half

  // Called after run(); copies in the calling thread, on its current stream.
  void copy_back() const {
    if (!written.is_same(output)) {
      write(output, written, /*non_blocking=*/true);
    }
  }
};

// Returns whether an error only refuses the caller's arguments, which changes nothing; any other means that the group
// has failed. communicator: that was called; null: none.
bool is_refusal(const std::exception& error, const Communicator* communicator);

struct SideStats {
  std::string device;  // "cpu", "cuda:0"
  Stats path;
  // On the CPU: the seconds that calls in two tiers ran on the worker, and how many of them callers were blocked in
  // Work::wait(), for this call or another. Callers that use the Future instead, as DDP does, are not counted.
  double ran_s = 0;
  double waited_s = 0;
};

// A group has one side for CPU tensors and at most one for CUDA tensors. Any thread may call any method. Collectives
// come in program order, which is the same on all ranks.
class Side : public WatchedCalls {
 public:
  virtual ~Side() = default;

  virtual WorldAbilities abilities() const = 0;

  // The first step of each call from torch with this side's tensors. Throws a fault that the device found.
  virtual void arrived(const char* call) = 0;

  // Returns the world backend. On the CPU, throws the group's failure, or an error if the group is shut down.
  virtual BackendPtr world() = 0;
  // Calls the world backend. If ranks are missing, the group fails and the error names them.
  virtual WorkPtr call_world(const std::function<WorkPtr(c10d::Backend&)>& call) = 0;

  // Starts `call` in two tiers and gives it a sequence number. Throws if the group has failed or is shut down.
  virtual WorkPtr submit(TwoTierCall call) = 0;

  // Returns, for a barrier, a Work that is done when all calls submitted so far are; null if there is nothing to wait
  // for, or if the calling thread's stream waits.
  virtual WorkPtr submitted() = 0;

  // Runs `action` on this rank's communicator after all work submitted so far. This is a local job: its failure leaves
  // the group usable. Returns a Work that is done when the action is, or null if it is. Requires two tiers. name: for
  // profilers.
  virtual WorkPtr run_between_collectives(const char* name, std::function<void(Communicator&)> action) = 0;
  // Returns whether there is a communicator, which may have units. A GPU's is made at first use.
  virtual bool has_communicator() const = 0;

  virtual std::optional<SideStats> stats() = 0;  // nothing without a communicator
  virtual void reset_stats() = 0;

  // Connects the ranks' devices now instead of at the first call. Collective.
  virtual void connect(at::Device device) = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  // The process ends: from now on neither abort() nor shutdown() touches what the process's end closes as well, and
  // might wait for ever.
  virtual void leave() {}
  // Waits until all submitted work is done or the group has failed; returns false if that takes longer than `patience`
  // (milliseconds::max(): no limit). By then the group accepts no more calls. Throws, after the peers have been told,
  // if the device itself has failed.
  virtual bool wait_until_idle(std::chrono::milliseconds patience) = 0;
  // Runs `action` on this rank's communicator, if there is one, after wait_until_idle() and also after a failure:
  // nothing else uses it any more.
  virtual void run_at_end(const std::function<void(Communicator&)>& action) = 0;
  // Closes connections, after wait_until_idle() or abort(). A second call does nothing. Afterwards only stats() may be
  // called.
  virtual void shutdown() = 0;
};

}  // namespace isthmus::torch_backend
