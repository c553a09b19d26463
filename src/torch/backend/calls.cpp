// The collectives of BackendIsthmus that reduce nothing, and what else it forwards: which way each call goes.
#include <ATen/ops/cat.h>

#include <algorithm>
#include <utility>

#include "torch/backend/internal.h"

namespace isthmus::torch_backend {
namespace {

Buffer byte_buffer(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), DataType::kByte};
}

}  // namespace

bool BackendIsthmus::takes_two_tiers(const at::Tensor& output, const at::Tensor& input) {
  return two_tier() && values_.two_tier_all_gather && output.numel() > 0 && output.numel() >= values_.min_elements &&
         output.numel() == input.numel() * getSize() && output.scalar_type() == input.scalar_type() &&
         output.layout() == at::kStrided && output.device() == input.device() && !world_gathers_faster(output);
}

WorkPtr BackendIsthmus::submit_all_gather(const at::Tensor& output, const at::Tensor& input,
                                          std::chrono::milliseconds timeout) {
  TwoTierCall call;
  call.operation.operation = "all-gather";
  call.operation.tensor = describe(output.numel(), input);
  call.type = c10d::OpType::_ALLGATHER_BASE;
  call.title = "isthmus:all_gather";
  call.input = contiguous(input);
  call.output = output;
  call.written = contiguous_stand_in(output);
  call.timeout = timeout_or_default(timeout);
  call.run = [shard = byte_buffer(call.input), gathered = byte_buffer(call.written)](Communicator& communicator,
                                                                                     Stream stream) {
    return communicator.all_gather(shard, gathered, stream);
  };
  return submit(std::move(call));
}

WorkPtr BackendIsthmus::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  const bool cuda = is_cuda(tensors);
  arrived("broadcast", cuda);
  return forward(cuda, [&](c10d::Backend& world) { return world.broadcast(tensors, options); });
}

WorkPtr BackendIsthmus::allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                  const c10d::AllgatherOptions& options) {
  const bool cuda = is_cuda(inputs);
  arrived("allgather", cuda);
  return forward(cuda, [&](c10d::Backend& world) { return world.allgather(outputs, inputs, options); });
}

WorkPtr BackendIsthmus::gather_into(at::Tensor output, at::Tensor input, const c10d::AllgatherOptions& options) {
  if (takes_two_tiers(output, input)) {
    return submit_all_gather(output, input, options.timeout);
  }
  const bool cuda = input.is_cuda();
  flatten(output, input);
  return forward(cuda, [&](c10d::Backend& world) { return world._allgather_base(output, input, options); });
}

WorkPtr BackendIsthmus::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  arrived("_allgather_base", input.is_cuda());
  return gather_into(output, input, options);
}

// Coalesced all-gathers are made one by one on the CPU. Gloo's own corrupt the heap now and then: whichever of its
// threads ends an operation writes the operation's name into one std::string of the group without a lock (torch 2.11 to
// 2.15), and "ALLGATHER_COALESCED" is too long for a string that allocates nothing.
WorkPtr BackendIsthmus::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                            std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& options) {
  const bool cuda = is_cuda(inputs);
  arrived("allgather_coalesced", cuda);
  const bool fits =
      !inputs.empty() && outputs.size() == static_cast<size_t>(getSize()) &&
      std::all_of(outputs.begin(), outputs.end(), [&](const auto& of_rank) { return of_rank.size() == inputs.size(); });
  if (cuda || !fits) {
    return forward(cuda, [&](c10d::Backend& world) { return world.allgather_coalesced(outputs, inputs, options); });
  }
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<at::Tensor> input{inputs[i]};
    std::vector<std::vector<at::Tensor>> gathered(1);
    for (const auto& of_rank : outputs) {
      gathered[0].push_back(of_rank[i]);
    }
    works.push_back(forward(cuda, [&](c10d::Backend& world) { return world.allgather(gathered, input, options); }));
  }
  return c10::make_intrusive<CombinedWork>(getRank(), c10d::OpType::ALLGATHER_COALESCED, std::move(works),
                                           getSize() == 1 ? c10::IValue(outputs[0]) : c10::IValue(outputs));
}

WorkPtr BackendIsthmus::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                        std::vector<at::Tensor>& inputs,
                                                        const c10d::AllgatherOptions& options) {
  const bool cuda = is_cuda(inputs);
  arrived("allgather_into_tensor_coalesced", cuda);
  bool one_by_one = !outputs.empty() && outputs.size() == inputs.size();
  for (size_t i = 0; cuda && one_by_one && i < outputs.size(); ++i) {
    one_by_one = takes_two_tiers(outputs[i], inputs[i]);
  }
  if (!one_by_one) {
    return forward(
        cuda, [&](c10d::Backend& world) { return world.allgather_into_tensor_coalesced(outputs, inputs, options); });
  }
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    works.push_back(gather_into(outputs[i], inputs[i], options));
  }
  return c10::make_intrusive<CombinedWork>(getRank(), c10d::OpType::_ALLGATHER_BASE, std::move(works), outputs);
}

WorkPtr BackendIsthmus::gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                               const c10d::GatherOptions& options) {
  const bool cuda = is_cuda(inputs);
  arrived("gather", cuda);
  return forward(cuda, [&](c10d::Backend& world) { return world.gather(outputs, inputs, options); });
}

#if ISTHMUS_TORCH_HAS_GATHER_SINGLE
WorkPtr BackendIsthmus::gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  const bool cuda = input.is_cuda();
  arrived("gather_single", cuda);
  return forward(cuda, [&](c10d::Backend& world) { return world.gather_single(output, input, options); });
}
#endif

WorkPtr BackendIsthmus::scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                const c10d::ScatterOptions& options) {
  const bool cuda = is_cuda(outputs);
  arrived("scatter", cuda);
  return forward(cuda, [&](c10d::Backend& world) { return world.scatter(outputs, inputs, options); });
}

WorkPtr BackendIsthmus::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                      std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  const bool cuda = output.is_cuda();
  arrived("alltoall_base", cuda);
  return forward(cuda, [&](c10d::Backend& world) {
    return world.alltoall_base(output, input, output_splits, input_splits, options);
  });
}

// Gloo has no all-to-all of lists: one all-to-all of the lists laid end to end.
WorkPtr BackendIsthmus::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                 const c10d::AllToAllOptions& options) {
  const bool cuda = is_cuda(inputs);
  arrived("alltoall", cuda);
  if (cuda) {
    return forward(cuda, [&](c10d::Backend& world) { return world.alltoall(outputs, inputs, options); });
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
  auto parts_elements = output_splits;  // Gloo takes the vectors away
  return forward(cuda, [&](c10d::Backend& world) {
    const auto work = world.alltoall_base(output, input, output_splits, input_splits, options);
    return followed_by(work, outputs, [output, outputs, parts_elements] {
      const auto parts = output.split_with_sizes(parts_elements);
      for (size_t rank = 0; rank < outputs.size(); ++rank) {
        outputs[rank].copy_(parts[rank].view(outputs[rank].sizes()));
      }
    });
  });
}

WorkPtr BackendIsthmus::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  const bool cuda = is_cuda(tensors);
  message_arrived("send", cuda);
  return forward(cuda, [&](c10d::Backend& world) { return world.send(tensors, destination, tag); });
}

WorkPtr BackendIsthmus::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  const bool cuda = is_cuda(tensors);
  message_arrived("recv", cuda);
  return forward(cuda, [&](c10d::Backend& world) { return world.recv(tensors, source, tag); });
}

WorkPtr BackendIsthmus::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  const bool cuda = is_cuda(tensors);
  message_arrived("recvAnysource", cuda);
  return forward(cuda, [&](c10d::Backend& world) { return world.recvAnysource(tensors, tag); });
}

// Torch does not hand on for which device it is: for the GPU that the group is bound to, else for the host alone.
WorkPtr BackendIsthmus::barrier(const c10d::BarrierOptions& options) {
  const auto bound = bound_device();
  const bool cuda = cuda_ && (bound || !options.device_ids.empty());
  arrived("barrier", cuda);
  c10d::BarrierOptions own = options;
  if (cuda && own.device_ids.empty()) {
    own.device_ids.push_back(bound->index());
  }
  return forward(cuda, [&](c10d::Backend& world) { return world.barrier(own); });
}

std::optional<at::Device> BackendIsthmus::bound_device() {
  std::lock_guard lock(mutex_);
  return device_ ? device_ : getBoundDeviceId();
}

void BackendIsthmus::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  arrived("monitored_barrier", false);
  world_backend()->monitoredBarrier(options, wait_all_ranks);
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
    world_backend()->eagerConnectSingleDevice(device);
    return;
  }
  process_.require_this();
  require_cuda("connecting");
  {
    std::lock_guard lock(mutex_);
    require_usable();
    device_ = device;
  }
  cuda_->connect(device);
}

void BackendIsthmus::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  world_backend()->setGroupUid(uid);
  if (cuda_) {
    cuda_->world()->setGroupUid(uid);
  }
}

}  // namespace isthmus::torch_backend
