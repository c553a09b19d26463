// The side of CUDA tensors. This header includes none of CUDA's, so that the rest of the backend needs none.
#pragma once

#include <memory>

#include "torch/base/call_counters.h"
#include "torch/base/group.h"
#include "torch/faults/fault_watch.h"
#include "torch/sides/side.h"

namespace isthmus::torch_backend {

// Tiers are made here, when they are first used.
struct CudaParts {
  BackendPtr world;
  c10::intrusive_ptr<c10d::Store> store;  // where ranks meet to make a tier, under a prefix that nothing else uses
};

// A side is bound to the device of its first tensor, or to the one it is connected to. The calling thread enqueues,
// under a lock: the order is the program's, hence the same on all ranks.
//
// submit() throws OptionError if the options do not fit a GPU, and ValueError if the tensors are on a GPU other than
// this side's; then nothing has happened. Only connect(), submit() and run_between_collectives() may block, until the
// other ranks come to make NCCL's communicators. Only wait_until_idle() and shutdown() wait for the GPU, the latter for
// a limited time, and for weights that cross as differences submit(), or where they do so in halves the Work. abort()
// and throw_if_faulted() never wait for a blocked thread; where a packet does not decode, the latter waits for NCCL's
// word on whether it came (Transport::failure_delay()).
//
// Throws Error if isthmus was built without CUDA.
std::unique_ptr<Side> make_cuda_side(const Group& group, CudaParts parts, FaultWatch& faults, CallCounters& counters);

}  // namespace isthmus::torch_backend
