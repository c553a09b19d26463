// The reductions of BackendIsthmus: which of them are gradients, and which way each call goes.
#include <utility>

#include "torch/backend_internal.h"

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
  return product.to(tensor.scalar_type())
      .reshape(tensor.sizes());  // a factor of one element has a dimension of its own
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

Buffer typed_buffer(const at::Tensor& tensor, DataType dtype) { return {tensor.data_ptr(), tensor.numel(), dtype}; }

bool on_cpu(const at::Tensor& output, const at::Tensor& input) { return output.is_cpu() && input.is_cpu(); }

// Only Python knows which of several FSDP2 modules a label means.
bool asks_for_ordinal(const ReductionCall& call) {
  return call.tag == nullptr && call.label != nullptr && !call.label->tag && call.label->framework == Framework::kFsdp2;
}

IdentifyFunction& identify_function() {
  static auto* function = new IdentifyFunction;  // never destroyed: it holds a Python object
  return *function;
}

int module_ordinal(BackendIsthmus& backend, const std::string& module_name, int64_t num_elements) {
  const IdentifyFunction& identify = identify_function();
  return identify ? identify(backend, module_name, num_elements) : 0;
}

}  // namespace

void set_identify_function(IdentifyFunction function) { identify_function() = std::move(function); }

std::optional<BackendIsthmus::Gradient> BackendIsthmus::recognise(const at::Tensor& output, const at::Tensor& input,
                                                                  Collective collective, const ReduceOp& op) {
  if (!two_tier()) {
    count_exact("the group is not on several nodes of one size");
    return std::nullopt;
  }
  const auto dtype = floating_dtype(input.scalar_type());
  const auto scale = sum_scale(op, getSize());
  const bool reducible = dtype && scale && on_cpu(output, input) && input.numel() > 0 &&
                         input.layout() == at::kStrided && output.scalar_type() == input.scalar_type();
  ReductionCall call = current_call();
  if (reducible && asks_for_ordinal(call)) {
    call.module_ordinal = module_ordinal(*this, call.label->module_name, input.numel());
  }
  std::lock_guard lock(mutex_);
  if (reducible) {
    if (auto unit = units_.identify(call, {input.numel(), *dtype, collective})) {
      return Gradient{std::move(unit->key), *scale, unit->why_exact};
    }
  }
  ++exact_calls_[why_not_recognised(call, output, input, reducible)];
  return std::nullopt;
}

const char* BackendIsthmus::why_not_recognised(const ReductionCall& call, const at::Tensor& output,
                                               const at::Tensor& input, bool reducible) const {
  if (call.tag == nullptr && call.label == nullptr && call.graph_task < 0) {
    return "not recognised as a gradient";
  }
  if (!on_cpu(output, input)) {
    return "not on the CPU";
  }
  if (input.numel() == 0) {
    return "empty";
  }
  if (!reducible) {
    return "not a sum of floating-point numbers";
  }
  return input.numel() < values_.min_elements ? "below min_elements" : kUnlabelled;
}

WorkPtr BackendIsthmus::submit_reduction(const at::Tensor& output, const at::Tensor& input, const Gradient& gradient,
                                         std::chrono::milliseconds timeout, std::function<void()> run) {
  const bool scatters = gradient.unit.collective == Collective::kReduceScatter;
  Job job;
  job.operation.operation = scatters ? "reduce-scatter" : "all-reduce";
  job.operation.unit = gradient.unit.name;
  job.operation.tensor = describe(input.numel(), input);
  job.timeout = timeout_or_default(timeout);
  job.work = c10::make_intrusive<WorkerWork>(getRank(),
                                             scatters ? c10d::OpType::_REDUCE_SCATTER_BASE : c10d::OpType::ALLREDUCE,
                                             scatters ? "isthmus:reduce_scatter" : "isthmus:all_reduce",
                                             std::vector<at::Tensor>{input}, std::vector<at::Tensor>{output});
  job.run = std::move(run);
  return submit(std::move(job));
}

WorkPtr BackendIsthmus::submit_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                              const Gradient& gradient, std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(), "isthmus: reduce-scatter of ", input.numel(),
                    " elements into ", output.numel(), " over ", getSize(), " ranks: expected ",
                    output.numel() * getSize());
  return submit_reduction(output, input, gradient, timeout, [this, output, input = contiguous(input), gradient] {
    with_contiguous(output, [&](const at::Tensor& shard) {
      const DataType dtype = gradient.unit.dtype;
      communicator_->reduce_scatter(typed_buffer(input, dtype), typed_buffer(shard, dtype), gradient.scale,
                                    gradient.unit, gradient.why_exact);
    });
  });
}

WorkPtr BackendIsthmus::submit_all_reduce(const at::Tensor& tensor, const Gradient& gradient,
                                          std::chrono::milliseconds timeout) {
  return submit_reduction(tensor, tensor, gradient, timeout, [this, tensor, gradient] {
    const at::Tensor data = contiguous(tensor);
    communicator_->all_reduce(typed_buffer(data, gradient.unit.dtype), gradient.scale, gradient.unit,
                              gradient.why_exact);
    if (!data.is_same(tensor)) {
      const at::NoGradGuard no_grad;
      tensor.copy_(data);
    }
  });
}

WorkPtr BackendIsthmus::combined(c10d::OpType type, std::vector<WorkPtr> works,
                                 const std::vector<at::Tensor>& outputs) const {
  if (works.size() == 1) {
    return works.front();
  }
  return c10::make_intrusive<CombinedWork>(getRank(), type, std::move(works), outputs);
}

WorkPtr BackendIsthmus::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  const auto world_backend = world("allreduce");
  if (tensors.size() == 1) {
    if (const auto gradient = recognise(tensors[0], tensors[0], Collective::kAllReduce, options.reduceOp)) {
      return submit_all_reduce(tensors[0], *gradient, options.timeout);
    }
  }
  premultiply_in_place(tensors, options.reduceOp);
  return issued(world_backend->allreduce(tensors, with_plain_sum(options)));
}

WorkPtr BackendIsthmus::allreduce_sparse(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  const auto world_backend = world("allreduce_sparse");
  count_exact("a sparse all-reduce");
  return issued(world_backend->allreduce_sparse(tensors, options));
}

WorkPtr BackendIsthmus::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                            const c10d::AllreduceCoalescedOptions& options) {
  const auto world_backend = world("allreduce_coalesced");
  std::vector<WorkPtr> works;
  std::vector<at::Tensor> plain;
  for (const auto& tensor : tensors) {
    if (const auto gradient = recognise(tensor, tensor, Collective::kAllReduce, options.reduceOp)) {
      works.push_back(submit_all_reduce(tensor, *gradient, options.timeout));
    } else {
      plain.push_back(tensor);
    }
  }
  if (works.empty() || !plain.empty()) {
    premultiply_in_place(plain, options.reduceOp);
    works.push_back(issued(world_backend->allreduce_coalesced(plain, with_plain_sum(options))));
  }
  return combined(c10d::OpType::ALLREDUCE_COALESCED, std::move(works), tensors);
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
  if (const auto gradient = recognise(output, input, Collective::kReduceScatter, options.reduceOp)) {
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
    if (const auto gradient = recognise(outputs[i], inputs[i], Collective::kReduceScatter, options.reduceOp)) {
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
  return combined(c10d::OpType::_REDUCE_SCATTER_BASE, std::move(works), outputs);
}

}  // namespace isthmus::torch_backend
