// The side of CUDA tensors. Free of CUDA's headers, so that the rest of the backend is, too.
#pragma once

#include <functional>
#include <memory>

#include "torch/base/call_counters.h"
#include "torch/base/group.h"
#include "torch/faults/fault_watch.h"
#include "torch/sides/side.h"

namespace isthmus::torch_backend {

// NCCL backends, which Python constructs, and one of Gloo for memory of the host, with weights=delta. The tiers are
// null where they have one rank, and without two tiers.
struct CudaParts {
  BackendPtr world;
  BackendPtr intra;
  BackendPtr inter;
  BackendPtr gather_intra;
  BackendPtr gather_inter;
  BackendPtr host_inter;
};

// A side is bound to the device of its first tensor, or to the one it is connected to. The calling thread enqueues,
// under a lock: the order is that of the program, hence the same on all ranks.
//
// submit() throws OptionError if the options do not fit a GPU, ValueError if the tensors are on another GPU than this
// side: then nothing has happened. Only connect(), submit() and run_between_collectives() may block, until the other
// ranks come to make NCCL's communicators; only drain() and shutdown() wait for the GPU. abort() and throw_if_faulted()
// never wait for a thread that is blocked.
//
// watcher: makes the Watcher of a Work with this sequence number. Throws Error where isthmus was built without CUDA.
std::unique_ptr<Side> make_cuda_side(const Group& group, CudaParts parts, FaultWatch& faults, CallCounters& counters,
                                     WatcherFor watcher);

}  // namespace isthmus::torch_backend
