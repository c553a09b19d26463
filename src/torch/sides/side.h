// The half of a process group that works on one kind of device: its world backend, and the two-tier path there.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "isthmus/communicator.h"
#include "torch/base/world_abilities.h"
#include "torch/faults/fault_watch.h"
#include "torch/sides/two_tier_call.h"
#include "torch/works/work.h"

namespace isthmus::torch_backend {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// Statistics of one device of a group.
struct SideStats {
  std::string device;  // "cpu", "cuda:0"
  Stats path;
  // On the CPU: seconds that calls in two tiers took from their start by the worker, and for which callers were blocked
  // in Work::wait() by them. Those who use the Future instead, as DDP does, are not seen.
  double ran_s = 0;
  double waited_s = 0;
};

// A group has one for CPU tensors and at most one for CUDA tensors. Any thread may call any method. Collectives come in
// program order, which is the same on all ranks.
class Side : public WatchedCalls {
 public:
  virtual ~Side() = default;

  virtual WorldAbilities abilities() const = 0;

  // The first step of each call from torch for this side's tensors. Throws a fault that was found on the device.
  virtual void arrived(const char* call) = 0;

  // On the CPU: throws the group's failure, or an error if it is shut down.
  virtual BackendPtr world() = 0;
  // Calls the world backend. If ranks are missing, the group fails and the error names them.
  virtual WorkPtr call_world(const std::function<WorkPtr(c10d::Backend&)>& call) = 0;

  // Starts `call`, which gets a sequence number, in two tiers. Throws if the group has failed or is shut down.
  virtual WorkPtr submit(TwoTierCall call) = 0;

  // For a barrier, which ends after all calls that were submitted before: a Work that is done when they are. Null:
  // there is nothing to wait for, or the calling thread's stream waits.
  virtual WorkPtr submitted() = 0;

  // Runs `action` on this rank's communicator after what was submitted before, and waits for it. A local job: its
  // failure leaves the group usable. Only with two tiers. name: for profilers.
  virtual void run_between_collectives(const char* name, const std::function<void(Communicator&)>& action) = 0;
  // The same, without waiting for it or telling whether it failed.
  virtual void post_between_collectives(const char* name, std::function<void(Communicator&)> action) = 0;
  // Whether there is a communicator that may have units. On a GPU it is made with the first use.
  virtual bool has_communicator() const = 0;

  virtual std::optional<SideStats> stats() = 0;  // nothing without a communicator
  virtual void reset_stats() = 0;

  // Connects the ranks' devices now instead of with the first call. Collective.
  virtual void connect(at::Device device) = 0;
  // The name of the group in the flight recorder.
  virtual void describe(const std::string& group) = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  // Waits until all submitted work is done, or the group has failed; false if that takes longer than `patience`
  // (milliseconds::max(): without a limit). The group accepts no more calls by then.
  virtual bool drain(std::chrono::milliseconds patience) = 0;
  // Closes connections, after drain() or abort(). Does nothing the second time. Afterwards only stats() may be called.
  virtual void shutdown() = 0;
};

}  // namespace isthmus::torch_backend
