// One operation of the two-tier path, on the CPU or on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "isthmus/communicator.h"
#include "torch/base/tensors.h"
#include "torch/faults/fault_board.h"

namespace isthmus::torch_backend {

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

  // Called after run(); copies in the calling thread, on its current stream.
  void copy_back() const {
    if (!written.is_same(output)) {
      write(output, written, /*non_blocking=*/true);
    }
  }
};

}  // namespace isthmus::torch_backend
