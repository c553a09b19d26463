// The reductions of BackendIsthmus: which of them are gradients, and which way each call goes.
#include <utility>

#include "torch/backend/dtypes.h"
#include "torch/backend/internal.h"

namespace isthmus::torch_backend {
namespace {

using c10d::ReduceOp;

const c10d::NCCLPreMulSumSupplement* premultiplier(const ReduceOp& op) {
  if (op.op_ != ReduceOp::PREMUL_SUM) {
    return nullptr;
  }
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "isthmus: a PREMUL_SUM without a factor");
  return factor;
}

// What a sum over `size` ranks is multiplied by; nothing if `op` is no sum, or that is known to a GPU alone: nobody
// waits for one here.
std::optional<double> sum_scale(const ReduceOp& op, int size) {
  if (op.op_ == ReduceOp::SUM) {
    return 1.0;
  }
  if (op.op_ == ReduceOp::AVG) {
    return 1.0 / size;
  }
  if (const auto* factor = premultiplier(op)) {
    const at::Tensor& tensor = factor->tensor_factor;
    if (!tensor.defined()) {
      return factor->double_factor;
    }
    if (tensor.is_cpu()) {
      return tensor.item<double>();
    }
  }
  return std::nullopt;
}

// Gloo lacks PREMUL_SUM, which NCCL has: the inputs are multiplied here, and their sum is taken. NCCL reads a factor's
// memory as if it were of the tensor's type.
at::Tensor premultiplied(const at::Tensor& tensor, const ReduceOp& op) {
  const at::NoGradGuard no_grad;
  const auto* factor = premultiplier(op);
  if (factor != nullptr && tensor.is_cuda()) {
    const at::Tensor& number = factor->tensor_factor;
    TORCH_CHECK_TYPE(!number.defined() || number.scalar_type() == tensor.scalar_type(), "isthmus: a PREMUL_SUM of ",
                     tensor.scalar_type(), " by a tensor of ", number.defined() ? number.scalar_type() : at::kFloat,
                     ": on GPUs both must be of one type");
  }
  if (factor == nullptr || tensor.is_cuda()) {
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
    const at::Tensor product = premultiplied(tensor, op);
    if (!product.is_same(tensor)) {
      tensor.copy_(product);
    }
  }
}

template <typename CallOptions>
CallOptions with_plain_sum(CallOptions options, bool cuda) {
  if (options.reduceOp.op_ == ReduceOp::PREMUL_SUM && !cuda) {
    options.reduceOp = ReduceOp(ReduceOp::SUM);
  }
  return options;
}

Buffer typed_buffer(const at::Tensor& tensor, DataType dtype) { return {tensor.data_ptr(), tensor.numel(), dtype}; }

FsdpFunctions& fsdp_functions() {
  static auto* functions = new FsdpFunctions;  // never destroyed: they hold Python objects
  return *functions;
}

// Adds what Python alone knows of a call that nothing tagged.
void ask_python(ReductionCall& call) {
  if (call.tag != nullptr || call.label == nullptr) {
    return;
  }
  const FsdpFunctions& functions = fsdp_functions();
  if (call.label->framework == Framework::kFsdp2) {
    call.fsdp2 = functions.fsdp2_caller ? functions.fsdp2_caller() : Fsdp2Caller{};
  } else if (call.accumulated && !parameter_tag(*call.accumulated) && functions.why_fsdp1_is_exact) {
    call.why_fsdp1_is_exact = functions.why_fsdp1_is_exact(at::Tensor(call.accumulated->lock()));
  }
}

}  // namespace

void set_fsdp_functions(FsdpFunctions functions) { fsdp_functions() = std::move(functions); }

std::optional<BackendIsthmus::Gradient> BackendIsthmus::recognise(const at::Tensor& output, const at::Tensor& input,
                                                                  Collective collective, const ReduceOp& op) {
  if (!two_tier()) {
    count_exact("the group is not on several nodes of one size");
    return std::nullopt;
  }
  const auto dtype = floating_dtype(input.scalar_type());
  const auto scale = sum_scale(op, getSize());
  const bool reducible = dtype && scale && output.device() == input.device() && input.numel() > 0 &&
                         input.layout() == at::kStrided && output.scalar_type() == input.scalar_type();
  ReductionCall call = current_call();
  if (reducible) {
    ask_python(call);
  }
  std::optional<Gradient> gradient;
  {
    std::lock_guard lock(mutex_);
    if (reducible) {
      if (auto unit = units_.identify(call, {input.numel(), *dtype, collective})) {
        gradient = Gradient{std::move(unit->key), *scale, unit->why_exact};
      }
    }
    if (!gradient) {
      ++exact_calls_[why_not_recognised(call, output, input, reducible)];
    }
  }
  if (gradient) {
    gradient->by_world = world_reduces_faster(*gradient, input);
  }
  return gradient;
}

const char* BackendIsthmus::why_not_recognised(const ReductionCall& call, const at::Tensor& output,
                                               const at::Tensor& input, bool reducible) const {
  if (call.tag == nullptr && call.label == nullptr && call.graph_task < 0) {
    return "not recognised as a gradient";
  }
  if (output.device() != input.device()) {
    return "input and output on different devices";
  }
  if (input.numel() == 0) {
    return "empty";
  }
  if (!reducible) {
    return "not a sum of floating-point numbers";
  }
  return input.numel() < values_.min_elements ? "below min_elements" : kUnlabelled;
}

WorkPtr BackendIsthmus::submit_reduction(TwoTierCall call, const Gradient& gradient) {
  const bool scatters = gradient.unit.collective == Collective::kReduceScatter;
  call.operation.operation = scatters ? "reduce-scatter" : "all-reduce";
  call.operation.unit = gradient.unit.name;
  if (values_.codec == "auto") {
    call.exposed_unit = gradient.unit.hash();
  }
  call.operation.tensor = describe(call.input.numel(), call.input);
  call.type = scatters ? c10d::OpType::_REDUCE_SCATTER_BASE : c10d::OpType::ALLREDUCE;
  call.title = scatters ? "isthmus:reduce_scatter" : "isthmus:all_reduce";
  bring_loaded_units(call.output.is_cuda());
  return submit(std::move(call));
}

WorkPtr BackendIsthmus::submit_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                              const Gradient& gradient, std::chrono::milliseconds timeout) {
  TwoTierCall call;
  call.input = contiguous(input);
  call.output = output;
  call.written = contiguous_stand_in(output);
  call.timeout = timeout_or_default(timeout);
  const DataType dtype = gradient.unit.dtype;
  call.run = [data = typed_buffer(call.input, dtype), shard = typed_buffer(call.written, dtype), gradient](
                 Communicator& communicator, Stream stream) {
    return communicator.reduce_scatter(data, shard, gradient.scale, gradient.unit, gradient.why_exact, stream);
  };
  return submit_reduction(std::move(call), gradient);
}

WorkPtr BackendIsthmus::submit_all_reduce(const at::Tensor& tensor, const Gradient& gradient,
                                          std::chrono::milliseconds timeout) {
  TwoTierCall call;
  call.input = tensor;
  call.output = tensor;
  call.written = contiguous(tensor);
  call.timeout = timeout_or_default(timeout);
  call.run = [data = typed_buffer(call.written, gradient.unit.dtype), gradient](Communicator& communicator,
                                                                                Stream stream) {
    return communicator.all_reduce(data, gradient.scale, gradient.unit, gradient.why_exact, stream);
  };
  return submit_reduction(std::move(call), gradient);
}

WorkPtr BackendIsthmus::reduce_scatter_by_world(at::Tensor& output, at::Tensor& product,
                                                const c10d::ReduceScatterOptions& options) {
  const bool cuda = product.is_cuda();
  return forward(cuda, [&](c10d::Backend& world) {
    return world._reduce_scatter_base(output, product, with_plain_sum(options, cuda));
  });
}

// The world backend takes what the two tiers take: tensors of any shape, and with gaps in memory.
WorkPtr BackendIsthmus::reduce_scatter_gradient(const at::Tensor& output, const at::Tensor& input,
                                                const Gradient& gradient, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(), "isthmus: reduce-scatter of ", input.numel(),
                    " elements into ", output.numel(), " over ", getSize(), " ranks: expected ",
                    output.numel() * getSize());
  if (!gradient.by_world) {
    return submit_reduce_scatter(output, input, gradient, options.timeout);
  }
  at::Tensor product = premultiplied(input, options.reduceOp);
  at::Tensor shard = output;
  flatten(shard, product);
  return reduce_scatter_by_world(shard, product, options);
}

WorkPtr BackendIsthmus::all_reduce_gradient(const at::Tensor& tensor, const Gradient& gradient,
                                            const c10d::AllreduceOptions& options) {
  if (!gradient.by_world) {
    return submit_all_reduce(tensor, gradient, options.timeout);
  }
  std::vector<at::Tensor> sums{contiguous(tensor)};
  premultiply_in_place(sums, options.reduceOp);
  const bool cuda = tensor.is_cuda();
  return forward(cuda, [&](c10d::Backend& world) {
    const WorkPtr work = world.allreduce(sums, with_plain_sum(options, cuda));
    return sums[0].is_same(tensor) ? work : followed_by(work, {tensor}, [tensor, sum = sums[0]] { tensor.copy_(sum); });
  });
}

WorkPtr BackendIsthmus::combined(c10d::OpType type, std::vector<WorkPtr> works,
                                 const std::vector<at::Tensor>& outputs) const {
  std::erase(works, nullptr);  // the caller's stream alone runs those
  if (works.size() < 2) {
    return works.empty() ? nullptr : works.front();
  }
  return c10::make_intrusive<CombinedWork>(getRank(), type, std::move(works), outputs);
}

WorkPtr BackendIsthmus::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  const bool cuda = is_cuda(tensors);
  arrived("allreduce", cuda);
  if (tensors.size() == 1) {
    if (const auto gradient = recognise(tensors[0], tensors[0], Collective::kAllReduce, options.reduceOp)) {
      return all_reduce_gradient(tensors[0], *gradient, options);
    }
  }
  premultiply_in_place(tensors, options.reduceOp);
  return forward(cuda, [&](c10d::Backend& world) { return world.allreduce(tensors, with_plain_sum(options, cuda)); });
}

WorkPtr BackendIsthmus::allreduce_sparse(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  const bool cuda = is_cuda(tensors);
  arrived("allreduce_sparse", cuda);
  count_exact("a sparse all-reduce");
  return forward(cuda, [&](c10d::Backend& world) { return world.allreduce_sparse(tensors, options); });
}

WorkPtr BackendIsthmus::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                            const c10d::AllreduceCoalescedOptions& options) {
  const bool cuda = is_cuda(tensors);
  arrived("allreduce_coalesced", cuda);
  std::vector<WorkPtr> works;
  std::vector<at::Tensor> plain;
  for (const auto& tensor : tensors) {
    if (const auto gradient = recognise(tensor, tensor, Collective::kAllReduce, options.reduceOp)) {
      works.push_back(all_reduce_gradient(tensor, *gradient, options));
    } else {
      plain.push_back(tensor);
    }
  }
  if (works.empty() || !plain.empty()) {
    premultiply_in_place(plain, options.reduceOp);
    works.push_back(forward(
        cuda, [&](c10d::Backend& world) { return world.allreduce_coalesced(plain, with_plain_sum(options, cuda)); }));
  }
  return combined(c10d::OpType::ALLREDUCE_COALESCED, std::move(works), tensors);
}

WorkPtr BackendIsthmus::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) {
  const bool cuda = is_cuda(tensors);
  arrived("reduce", cuda);
  // The inputs of ranks other than the root stay as they are.
  std::vector<at::Tensor> products;
  products.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    products.push_back(premultiplied(tensor, options.reduceOp));
  }
  if (cuda || options.reduceOp.op_ != ReduceOp::PREMUL_SUM) {
    return forward(cuda, [&](c10d::Backend& world) { return world.reduce(tensors, options); });
  }
  return forward(cuda, [&](c10d::Backend& world) {
    const auto work = world.reduce(products, with_plain_sum(options, cuda));
    return followed_by(work, tensors, [products, tensors, is_root = options.rootRank == getRank()]() mutable {
      for (size_t i = 0; is_root && i < tensors.size(); ++i) {
        tensors[i].copy_(products[i]);
      }
    });
  });
}

WorkPtr BackendIsthmus::reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                       const c10d::ReduceScatterOptions& options) {
  const bool cuda = is_cuda(outputs);
  arrived("reduce_scatter", cuda);
  count_exact("a reduce-scatter of lists");
  std::vector<std::vector<at::Tensor>> products;
  for (const auto& list : inputs) {
    auto& product = products.emplace_back();
    for (const auto& tensor : list) {
      product.push_back(premultiplied(tensor, options.reduceOp));
    }
  }
  return forward(cuda, [&](c10d::Backend& world) {
    return world.reduce_scatter(outputs, products, with_plain_sum(options, cuda));
  });
}

WorkPtr BackendIsthmus::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::ReduceScatterOptions& options) {
  const bool cuda = input.is_cuda();
  arrived("_reduce_scatter_base", cuda);
  if (const auto gradient = recognise(output, input, Collective::kReduceScatter, options.reduceOp)) {
    return reduce_scatter_gradient(output, input, *gradient, options);
  }
  at::Tensor product = premultiplied(input, options.reduceOp);
  return reduce_scatter_by_world(output, product, options);
}

WorkPtr BackendIsthmus::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                        std::vector<at::Tensor>& inputs,
                                                        const c10d::ReduceScatterOptions& options) {
  const bool cuda = is_cuda(inputs);
  arrived("reduce_scatter_tensor_coalesced", cuda);
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "isthmus: reduce-scatter of ", inputs.size(), " tensors into ",
                    outputs.size());
  std::vector<WorkPtr> works;
  std::vector<at::Tensor> plain_outputs;
  std::vector<at::Tensor> plain_inputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (const auto gradient = recognise(outputs[i], inputs[i], Collective::kReduceScatter, options.reduceOp)) {
      works.push_back(reduce_scatter_gradient(outputs[i], inputs[i], *gradient, options));
    } else {
      plain_outputs.push_back(outputs[i]);
      plain_inputs.push_back(premultiplied(inputs[i], options.reduceOp));
    }
  }
  if (works.empty() || !plain_outputs.empty()) {
    works.push_back(forward(cuda, [&](c10d::Backend& world) {
      return world.reduce_scatter_tensor_coalesced(plain_outputs, plain_inputs, with_plain_sum(options, cuda));
    }));
  }
  return combined(c10d::OpType::_REDUCE_SCATTER_BASE, std::move(works), outputs);
}

}  // namespace isthmus::torch_backend
