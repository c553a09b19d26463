// The collectives of BackendIsthmus that reduce nothing, and what else it forwards: which way each call goes.
#include <ATen/ops/cat.h>

#include <utility>

#include "torch/backend_internal.h"

namespace isthmus::torch_backend {
namespace {

Buffer byte_buffer(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), DataType::kByte};
}

}  // namespace

bool BackendIsthmus::takes_two_tiers(const at::Tensor& output, const at::Tensor& input) const {
  return two_tier() && values_.two_tier_all_gather && output.numel() > 0 && output.numel() >= values_.min_elements &&
         output.numel() == input.numel() * getSize() && output.scalar_type() == input.scalar_type() &&
         output.layout() == at::kStrided && output.is_cpu() && input.is_cpu();
}

WorkPtr BackendIsthmus::submit_all_gather(const at::Tensor& output, const at::Tensor& input,
                                          std::chrono::milliseconds timeout) {
  Job job;
  job.operation.operation = "all-gather";
  job.operation.tensor = describe(output.numel(), input);
  job.timeout = timeout_or_default(timeout);
  job.work = c10::make_intrusive<WorkerWork>(getRank(), c10d::OpType::_ALLGATHER_BASE, "isthmus:all_gather",
                                             std::vector<at::Tensor>{input}, std::vector<at::Tensor>{output});
  job.run = [this, output, input = contiguous(input)] {
    with_contiguous(output, [&](const at::Tensor& gathered) {
      communicator_->all_gather(byte_buffer(input), byte_buffer(gathered));
    });
  };
  return submit(std::move(job));
}

WorkPtr BackendIsthmus::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  return issued(world("broadcast")->broadcast(tensors, options));
}

WorkPtr BackendIsthmus::allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                  const c10d::AllgatherOptions& options) {
  return issued(world("allgather")->allgather(outputs, inputs, options));
}

WorkPtr BackendIsthmus::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  const auto world_backend = world("_allgather_base");
  if (takes_two_tiers(output, input)) {
    return submit_all_gather(output, input, options.timeout);
  }
  // Gloo insists on one shape of output, which callers of the two-tier path need not know.
  at::Tensor flat_output = output.is_contiguous() ? output.view({-1}) : output;
  at::Tensor flat_input = output.is_contiguous() ? input.reshape({-1}) : input;
  return issued(world_backend->_allgather_base(flat_output, flat_input, options));
}

WorkPtr BackendIsthmus::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                            std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& options) {
  return issued(world("allgather_coalesced")->allgather_coalesced(outputs, inputs, options));
}

WorkPtr BackendIsthmus::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                        std::vector<at::Tensor>& inputs,
                                                        const c10d::AllgatherOptions& options) {
  const auto world_backend = world("allgather_into_tensor_coalesced");
  bool all_large = !outputs.empty() && outputs.size() == inputs.size();
  for (size_t i = 0; all_large && i < outputs.size(); ++i) {
    all_large = takes_two_tiers(outputs[i], inputs[i]);
  }
  if (!all_large) {
    return issued(world_backend->allgather_into_tensor_coalesced(outputs, inputs, options));
  }
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    works.push_back(submit_all_gather(outputs[i], inputs[i], options.timeout));
  }
  return c10::make_intrusive<CombinedWork>(getRank(), c10d::OpType::_ALLGATHER_BASE, std::move(works));
}

WorkPtr BackendIsthmus::gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                               const c10d::GatherOptions& options) {
  return issued(world("gather")->gather(outputs, inputs, options));
}

#if ISTHMUS_TORCH_HAS_GATHER_SINGLE
WorkPtr BackendIsthmus::gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  return issued(world("gather_single")->gather_single(output, input, options));
}
#endif

WorkPtr BackendIsthmus::scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                const c10d::ScatterOptions& options) {
  return issued(world("scatter")->scatter(outputs, inputs, options));
}

WorkPtr BackendIsthmus::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                      std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  return issued(world("alltoall_base")->alltoall_base(output, input, output_splits, input_splits, options));
}

// Gloo has no all-to-all of lists: one all-to-all of the lists laid end to end.
WorkPtr BackendIsthmus::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                 const c10d::AllToAllOptions& options) {
  const auto world_backend = world("alltoall");
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
  const auto work = world_backend->alltoall_base(output, input, output_splits, input_splits, options);
  return issued(followed_by(work, outputs, [output, outputs, parts_elements] {
    const auto parts = output.split_with_sizes(parts_elements);
    for (size_t rank = 0; rank < outputs.size(); ++rank) {
      outputs[rank].copy_(parts[rank].view(outputs[rank].sizes()));
    }
  }));
}

WorkPtr BackendIsthmus::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  return issued(world_for_message("send")->send(tensors, destination, tag));
}

WorkPtr BackendIsthmus::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  return issued(world_for_message("recv")->recv(tensors, source, tag));
}

WorkPtr BackendIsthmus::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  return issued(world_for_message("recvAnysource")->recvAnysource(tensors, tag));
}

WorkPtr BackendIsthmus::barrier(const c10d::BarrierOptions& options) {
  return issued(world("barrier")->barrier(options));
}

void BackendIsthmus::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  world("monitored_barrier")->monitoredBarrier(options, wait_all_ranks);
}

bool BackendIsthmus::supportsTensorAlloc(c10::DeviceIndex device) {
  return world_backend()->supportsTensorAlloc(device);
}

std::shared_ptr<c10::Allocator> BackendIsthmus::getMemAllocator() { return world_backend()->getMemAllocator(); }

at::Tensor BackendIsthmus::allocateTensor(long size, at::TensorOptions options) {
  return world_backend()->allocateTensor(size, options);
}

void BackendIsthmus::enableCollectivesTiming() { world_backend()->enableCollectivesTiming(); }

void BackendIsthmus::eagerConnectSingleDevice(at::Device device) { world_backend()->eagerConnectSingleDevice(device); }

void BackendIsthmus::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  world_backend()->setGroupUid(uid);
}

}  // namespace isthmus::torch_backend
