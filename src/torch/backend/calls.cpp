// Torch's calls of BackendIsthmus that neither reduce nor all-gather: they go to the world backend.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "torch/backend/backend.h"
#include "torch/base/tensors.h"

namespace isthmus::torch_backend {

// Must not throw: torch would silently drop later collectives.
void BackendIsthmus::startCoalescing() {
  if (group_.process.is_this()) {
    calls_.start_coalescing();
  }
}

WorkPtr BackendIsthmus::endCoalescing() {
  group_.process.require_this();
  return calls_.end_coalescing();
}

WorkPtr BackendIsthmus::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  Side& side = arrived("broadcast", tensors);
  return calls_.forward(side, [&](c10d::Backend& world) { return world.broadcast(tensors, options); });
}

WorkPtr BackendIsthmus::gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                               const c10d::GatherOptions& options) {
  Side& side = arrived("gather", inputs);
  return calls_.forward(side, [&](c10d::Backend& world) { return world.gather(outputs, inputs, options); });
}

#if ISTHMUS_TORCH_HAS_GATHER_SINGLE
WorkPtr BackendIsthmus::gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  Side& side = arrived("gather_single", input);
  return calls_.forward(side, [&](c10d::Backend& world) { return world.gather_single(output, input, options); });
}
#endif

WorkPtr BackendIsthmus::scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                const c10d::ScatterOptions& options) {
  Side& side = arrived("scatter", outputs);
  return calls_.forward(side, [&](c10d::Backend& world) { return world.scatter(outputs, inputs, options); });
}

WorkPtr BackendIsthmus::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                      std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  Side& side = arrived("alltoall_base", output);
  return calls_.forward(side, [&](c10d::Backend& world) {
    return world.alltoall_base(output, input, output_splits, input_splits, options);
  });
}

// Gloo has no all-to-all of lists: this concatenates the lists and makes one all-to-all.
WorkPtr BackendIsthmus::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                 const c10d::AllToAllOptions& options) {
  Side& side = arrived("alltoall", inputs);
  if (side.abilities().all_to_all_of_lists) {
    return calls_.forward(side, [&](c10d::Backend& world) { return world.alltoall(outputs, inputs, options); });
  }
  const auto size = static_cast<size_t>(getSize());
  TORCH_CHECK_VALUE(outputs.size() == size && inputs.size() == size, "isthmus: all-to-all of ", inputs.size(),
                    " tensors into ", outputs.size(), " over ", size, " ranks: expected one for each rank");
  std::vector<at::Tensor> flat_inputs;
  std::vector<int64_t> input_splits;
  std::vector<int64_t> output_splits;
  int64_t output_elements = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    TORCH_CHECK_TYPE(
        inputs[rank].scalar_type() == inputs[0].scalar_type() && outputs[rank].scalar_type() == inputs[0].scalar_type(),
        "isthmus: all-to-all of tensors of different types");
    flat_inputs.push_back(inputs[rank].reshape({-1}));
    input_splits.push_back(inputs[rank].numel());
    output_splits.push_back(outputs[rank].numel());
    output_elements += outputs[rank].numel();
  }
  at::Tensor input = at::cat(flat_inputs);
  at::Tensor output = at::empty({output_elements}, input.options());
  auto parts_elements = output_splits;  // Gloo empties the vectors
  return calls_.forward(side, [&](c10d::Backend& world) {
    const auto work = world.alltoall_base(output, input, output_splits, input_splits, options);
    return followed_by(work, outputs, [output, outputs, parts_elements] {
      const auto parts = output.split_with_sizes(parts_elements);
      for (size_t rank = 0; rank < outputs.size(); ++rank) {
        write(outputs[rank], parts[rank].view(outputs[rank].sizes()));
      }
    });
  });
}

WorkPtr BackendIsthmus::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  Side& side = arrived("send", tensors, /*is_collective=*/false);
  return calls_.forward(side, [&](c10d::Backend& world) { return world.send(tensors, destination, tag); });
}

WorkPtr BackendIsthmus::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  Side& side = arrived("recv", tensors, /*is_collective=*/false);
  return calls_.forward(side, [&](c10d::Backend& world) { return world.recv(tensors, source, tag); });
}

WorkPtr BackendIsthmus::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  Side& side = arrived("recvAnysource", tensors, /*is_collective=*/false);
  return calls_.forward(side, [&](c10d::Backend& world) { return world.recvAnysource(tensors, tag); });
}

// Torch does not pass on the device: the barrier is for the GPU that the group is bound to, else for the host.
WorkPtr BackendIsthmus::barrier(const c10d::BarrierOptions& options) {
  const auto bound = bound_device();
  const bool on_gpu = cuda_ && (bound || !options.device_ids.empty());
  Side& side = arrived_on(on_gpu ? *cuda_ : cpu_, "barrier");
  c10d::BarrierOptions own = options;
  if (on_gpu && own.device_ids.empty()) {
    own.device_ids.push_back(bound->index());
  }
  const WorkPtr earlier = side.submitted();  // the world backend does not know these calls
  WorkPtr passed = calls_.forward(side, [&](c10d::Backend& world) { return world.barrier(own); });
  if (!earlier) {
    return passed;
  }
  return c10::make_intrusive<CombinedWork>(group_.rank, c10d::OpType::BARRIER, std::vector{earlier, std::move(passed)},
                                           std::vector<at::Tensor>{});
}

void BackendIsthmus::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  arrived_on(cpu_, "monitored_barrier");
  cpu_.world()->monitoredBarrier(options, wait_all_ranks);
}

bool BackendIsthmus::supportsTensorAlloc(c10::DeviceIndex device) {
  return device_backend()->supportsTensorAlloc(device);
}

std::shared_ptr<c10::Allocator> BackendIsthmus::getMemAllocator() { return device_backend()->getMemAllocator(); }

at::Tensor BackendIsthmus::allocateTensor(long size, at::TensorOptions options) {
  return device_backend()->allocateTensor(size, options);
}

void BackendIsthmus::enableCollectivesTiming() { device_backend()->enableCollectivesTiming(); }

void BackendIsthmus::eagerConnectSingleDevice(at::Device device) {
  if (!device.is_cuda()) {
    cpu_.connect(device);
    return;
  }
  group_.process.require_this();
  Side& side = sides_.cuda("connecting");
  faults_.require_usable();
  bind(device);
  side.connect(device);
}

void BackendIsthmus::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  if (group_.owns_worlds) {
    for (Side* side : sides_.all()) {
      side->world()->setGroupUid(uid);
    }
  }
}

}  // namespace isthmus::torch_backend
