// The collectives of BackendIsthmus: which way each call goes.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "torch/backend.h"

namespace isthmus::torch_backend {
namespace {

using c10d::ReduceOp;

// The type in which a tensor can be reduced by the two-tier path.
std::optional<DataType> floating_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kDouble:
      return DataType::kFloat64;
    default:  // torch has 40 more
      return std::nullopt;
  }
}

const c10d::NCCLPreMulSumSupplement* premultiplier(const ReduceOp& op) {
  if (op.op_ != ReduceOp::PREMUL_SUM) {
    return nullptr;
  }
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "isthmus: a PREMUL_SUM without a factor");
  return factor;
}

// What a sum over `size` ranks is multiplied by; nothing if `op` is no sum.
std::optional<double> sum_scale(const ReduceOp& op, int size) {
  if (op.op_ == ReduceOp::SUM) {
    return 1.0;
  }
  if (op.op_ == ReduceOp::AVG) {
    return 1.0 / size;
  }
  if (const auto* factor = premultiplier(op)) {
    return factor->tensor_factor.defined() ? factor->tensor_factor.item<double>() : factor->double_factor;
  }
  return std::nullopt;
}

// Gloo lacks PREMUL_SUM: the inputs are multiplied here, and their sum is taken.
at::Tensor premultiplied(const at::Tensor& tensor, const ReduceOp& op) {
  const at::NoGradGuard no_grad;
  const auto* factor = premultiplier(op);
  if (factor == nullptr) {
    return tensor;
  }
  const at::Tensor product =
      factor->tensor_factor.defined() ? tensor.mul(factor->tensor_factor) : tensor.mul(factor->double_factor);
  return product.to(tensor.scalar_type());
}

void premultiply_in_place(std::vector<at::Tensor>& tensors, const ReduceOp& op) {
  const at::NoGradGuard no_grad;
  for (auto& tensor : tensors) {
    if (op.op_ == ReduceOp::PREMUL_SUM) {
      tensor.copy_(premultiplied(tensor, op));
    }
  }
}

template <typename CallOptions>
CallOptions with_plain_sum(CallOptions options) {
  if (options.reduceOp.op_ == ReduceOp::PREMUL_SUM) {
    options.reduceOp = ReduceOp(ReduceOp::SUM);
  }
  return options;
}

// "4096 x Float": for reports of faults.
std::string describe(int64_t num_elements, const at::Tensor& like) {
  return c10::str(num_elements, " x ", like.scalar_type());
}

Buffer typed_buffer(const at::Tensor& tensor, DataType dtype) { return {tensor.data_ptr(), tensor.numel(), dtype}; }

Buffer byte_buffer(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), DataType::kByte};
}

at::Tensor contiguous(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.contiguous();
}

// Runs `action` on `output`, or on a contiguous stand-in that is copied back.
template <typename Action>
void with_contiguous(const at::Tensor& output, Action action) {
  if (output.is_contiguous()) {
    action(output);
    return;
  }
  const at::NoGradGuard no_grad;
  at::Tensor stand_in = at::empty(output.sizes(), output.options());
  action(stand_in);
  output.copy_(stand_in);
}

}  // namespace

std::optional<BackendIsthmus::Gradient> BackendIsthmus::recognise(const at::Tensor& output, const at::Tensor& input,
                                                                  const ReduceOp& op) {
  if (!two_tier()) {
    count_exact("the group is not on several nodes of one size");
    return std::nullopt;
  }
  const auto label = current_gradient_label();
  if (!label) {
    count_exact("not recognised as a gradient");
    return std::nullopt;
  }
  if (!input.is_cpu() || !output.is_cpu()) {
    count_exact("not on the CPU");
    return std::nullopt;
  }
  const auto dtype = floating_dtype(input.scalar_type());
  const auto scale = sum_scale(op, getSize());
  if (!dtype || !scale || output.scalar_type() != input.scalar_type() || input.numel() == 0) {
    count_exact("not a sum of floating-point numbers");
    return std::nullopt;
  }
  TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(), "isthmus: reduce-scatter of ", input.numel(),
                    " elements into ", output.numel(), " over ", getSize(), " ranks: expected ",
                    output.numel() * getSize());
  std::lock_guard lock(mutex_);
  return Gradient{{namer_.name(*label, input.numel(), *dtype, current_graph_task()), input.numel(), *dtype}, *scale};
}

bool BackendIsthmus::takes_two_tiers(const at::Tensor& output, const at::Tensor& input) const {
  return two_tier() && values_.two_tier_all_gather && output.numel() > 0 && output.numel() >= values_.min_elements &&
         output.numel() == input.numel() * getSize() && output.scalar_type() == input.scalar_type() &&
         output.layout() == at::kStrided && output.is_cpu() && input.is_cpu();
}

WorkPtr BackendIsthmus::submit_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                              const Gradient& gradient, std::chrono::milliseconds timeout) {
  Job job;
  job.operation.operation = "reduce-scatter";
  job.operation.unit = gradient.unit.name;
  job.operation.tensor = describe(input.numel(), input);
  job.timeout = timeout_or_default(timeout);
  job.work = c10::make_intrusive<WorkerWork>(getRank(), c10d::OpType::_REDUCE_SCATTER_BASE, "isthmus:reduce_scatter",
                                             std::vector<at::Tensor>{input}, std::vector<at::Tensor>{output});
  job.run = [this, output, input = contiguous(input), gradient] {
    with_contiguous(output, [&](const at::Tensor& shard) {
      const DataType dtype = gradient.unit.dtype;
      communicator_->reduce_scatter(typed_buffer(input, dtype), typed_buffer(shard, dtype), gradient.scale,
                                    gradient.unit, /*why_exact=*/nullptr);
    });
  };
  return submit(std::move(job));
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

WorkPtr BackendIsthmus::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  const auto world_backend = world("allreduce");
  count_exact("an all-reduce");
  premultiply_in_place(tensors, options.reduceOp);
  return issued(world_backend->allreduce(tensors, with_plain_sum(options)));
}

WorkPtr BackendIsthmus::allreduce_sparse(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  const auto world_backend = world("allreduce_sparse");
  count_exact("an all-reduce");
  return issued(world_backend->allreduce_sparse(tensors, options));
}

WorkPtr BackendIsthmus::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                            const c10d::AllreduceCoalescedOptions& options) {
  const auto world_backend = world("allreduce_coalesced");
  count_exact("an all-reduce");
  premultiply_in_place(tensors, options.reduceOp);
  return issued(world_backend->allreduce_coalesced(tensors, with_plain_sum(options)));
}

WorkPtr BackendIsthmus::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) {
  const auto world_backend = world("reduce");
  if (options.reduceOp.op_ != ReduceOp::PREMUL_SUM) {
    return issued(world_backend->reduce(tensors, options));
  }
  // The inputs of ranks other than the root stay as they are.
  std::vector<at::Tensor> products;
  for (const auto& tensor : tensors) {
    products.push_back(premultiplied(tensor, options.reduceOp));
  }
  const auto work = world_backend->reduce(products, with_plain_sum(options));
  return issued(followed_by(work, tensors, [products, tensors, is_root = options.rootRank == getRank()]() mutable {
    for (size_t i = 0; is_root && i < tensors.size(); ++i) {
      tensors[i].copy_(products[i]);
    }
  }));
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

WorkPtr BackendIsthmus::reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                       const c10d::ReduceScatterOptions& options) {
  const auto world_backend = world("reduce_scatter");
  count_exact("a reduce-scatter of lists");
  std::vector<std::vector<at::Tensor>> products;
  for (const auto& list : inputs) {
    auto& product = products.emplace_back();
    for (const auto& tensor : list) {
      product.push_back(premultiplied(tensor, options.reduceOp));
    }
  }
  return issued(world_backend->reduce_scatter(outputs, products, with_plain_sum(options)));
}

WorkPtr BackendIsthmus::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::ReduceScatterOptions& options) {
  const auto world_backend = world("_reduce_scatter_base");
  if (const auto gradient = recognise(output, input, options.reduceOp)) {
    return submit_reduce_scatter(output, input, *gradient, options.timeout);
  }
  at::Tensor product = premultiplied(input, options.reduceOp);
  return issued(world_backend->_reduce_scatter_base(output, product, with_plain_sum(options)));
}

WorkPtr BackendIsthmus::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                        std::vector<at::Tensor>& inputs,
                                                        const c10d::ReduceScatterOptions& options) {
  const auto world_backend = world("reduce_scatter_tensor_coalesced");
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "isthmus: reduce-scatter of ", inputs.size(), " tensors into ",
                    outputs.size());
  std::vector<WorkPtr> works;
  std::vector<at::Tensor> plain_outputs;
  std::vector<at::Tensor> plain_inputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (const auto gradient = recognise(outputs[i], inputs[i], options.reduceOp)) {
      works.push_back(submit_reduce_scatter(outputs[i], inputs[i], *gradient, options.timeout));
    } else {
      plain_outputs.push_back(outputs[i]);
      plain_inputs.push_back(premultiplied(inputs[i], options.reduceOp));
    }
  }
  if (works.empty() || !plain_outputs.empty()) {
    works.push_back(
        issued(world_backend->reduce_scatter_tensor_coalesced(plain_outputs, plain_inputs, with_plain_sum(options))));
  }
  if (works.size() == 1) {
    return works.front();
  }
  return c10::make_intrusive<CombinedWork>(getRank(), c10d::OpType::_REDUCE_SCATTER_BASE, std::move(works));
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
  return issued(world("send")->send(tensors, destination, tag));
}

WorkPtr BackendIsthmus::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  return issued(world("recv")->recv(tensors, source, tag));
}

WorkPtr BackendIsthmus::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  return issued(world("recvAnysource")->recvAnysource(tensors, tag));
}

WorkPtr BackendIsthmus::barrier(const c10d::BarrierOptions& options) {
  return issued(world("barrier")->barrier(options));
}

}  // namespace isthmus::torch_backend
