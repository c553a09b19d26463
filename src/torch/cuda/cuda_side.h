// The half of a backend that CUDA tensors take. Free of CUDA's headers, so that the rest of the backend is, too.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "torch/sides/c10d_transport.h"
#include "torch/sides/two_tier_call.h"
#include "torch/works/work.h"

namespace isthmus::torch_backend {

// NCCL backends, which Python constructs. The tiers are null where they have one rank, and without two tiers.
struct CudaParts {
  BackendPtr world;
  BackendPtr intra;
  BackendPtr inter;
  BackendPtr gather_intra;
  BackendPtr gather_inter;
};

// What one GPU did for a group.
struct CudaStats {
  std::string device;  // "cuda:0"
  Stats path;
};

// A group has at most one. It takes to the device of the first tensor, or to the one it is connected to, and stays
// there. The calling thread enqueues, under a lock: the order is that of the program, hence the same on all ranks.
//
// Any thread may call any method. Only connect() and enqueue() may block, until the other ranks come to make NCCL's
// communicators; only shutdown() waits for the GPU. abort(), throw_if_faulted() and idle() never wait for a thread that
// is blocked.
class CudaSide {
 public:
  virtual ~CudaSide() = default;

  virtual const BackendPtr& world() const = 0;

  // Enqueues `call` behind what is on the current stream. The Work's wait() orders the current stream of its caller.
  // Throws OptionError if the options do not fit a GPU, ValueError if the tensors are on another GPU than this side:
  // then nothing has happened. Any other exception is a failure of the group.
  virtual WorkPtr enqueue(const TwoTierCall& call, const Watcher& watcher) = 0;

  // The communicator, for its units; made if there is none yet. Nobody enqueues meanwhile.
  virtual void with_communicator(const std::function<void(Communicator&)>& action) = 0;
  virtual bool has_communicator() const = 0;

  // The phase that the last failure of enqueue() was in.
  virtual const char* phase() const = 0;
  // Throws what a decoder has found on the GPU, once the host can see it.
  virtual void throw_if_faulted() = 0;
  // Whether all that was enqueued is done, as far as can be told without waiting.
  virtual bool idle() = 0;

  virtual std::optional<CudaStats> stats() = 0;
  virtual void reset_stats() = 0;

  // Makes NCCL's communicators now, all of them, on this device. Collective.
  virtual void connect(at::Device device) = 0;
  // How NCCL's flight recorder calls the group.
  virtual void describe(const std::string& group) = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  virtual void abort() = 0;
  // Waits for the GPU, unless abort() was called. Later calls but stats() must not come.
  virtual void shutdown() = 0;
};

// rank: in the group. Throws Error where isthmus was built without CUDA.
std::unique_ptr<CudaSide> make_cuda_side(CudaParts parts, NodeMap map, int rank, isthmus::Options options);

}  // namespace isthmus::torch_backend
