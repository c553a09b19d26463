// Reductions: gradients go in two tiers, all others to the world backend.
#include <utility>

#include "communicator/units/unit.h"
#include "torch/backend/backend.h"
#include "torch/base/tensors.h"
#include "torch/works/stand_ins.h"

namespace isthmus::torch_backend {
namespace {

Buffer typed_buffer(const at::Tensor& tensor, DataType dtype) { return {tensor.data_ptr(), tensor.numel(), dtype}; }

// Returns the factor of a sum over `size` ranks; nothing if `op` is no sum, or if the factor is in GPU memory, where
// reading it would block.
std::optional<double> sum_scale(const c10d::ReduceOp& op, int size) {
  if (op.op_ == c10d::ReduceOp::SUM) {
    return 1.0;
  }
  if (op.op_ == c10d::ReduceOp::AVG) {
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

// Multiplies `tensor` for a call with with_plain_sum(), if the world backend does not multiply (Gloo). Throws TypeError
// if the world backend would misread a factor of another type (NCCL).
at::Tensor premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op, const WorldAbilities& world) {
  const at::NoGradGuard no_grad;
  const auto* factor = premultiplier(op);
  if (factor == nullptr) {
    return tensor;
  }
  const at::Tensor& number = factor->tensor_factor;
  if (world.premultiplied_sums) {
    TORCH_CHECK_TYPE(!number.defined() || number.scalar_type() == tensor.scalar_type(), "isthmus: a PREMUL_SUM of ",
                     tensor.scalar_type(), " by a tensor of ", number.defined() ? number.scalar_type() : at::kFloat,
                     ": on GPUs both must be of one type");
    return tensor;
  }
  const at::Tensor product = number.defined() ? tensor.mul(number) : tensor.mul(factor->double_factor);
  return product.to(tensor.scalar_type()).reshape(tensor.sizes());  // a factor of one element adds a dimension
}

void premultiply_in_place(std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op, const WorldAbilities& world) {
  for (auto& tensor : tensors) {
    const at::Tensor product = premultiplied(tensor, op, world);
    if (!product.is_same(tensor)) {
      write(tensor, product);
    }
  }
}

// Returns the call's options for tensors that are multiplied already.
template <typename CallOptions>
CallOptions with_plain_sum(CallOptions options, const WorldAbilities& world) {
  if (options.reduceOp.op_ == c10d::ReduceOp::PREMUL_SUM && !world.premultiplied_sums) {
    options.reduceOp = c10d::ReduceOp(c10d::ReduceOp::SUM);
  }
  return options;
}

}  // namespace

std::optional<Reduction> BackendIsthmus::gradient_of(const at::Tensor& output, const at::Tensor& input,
                                                     Collective collective, const c10d::ReduceOp& op) {
  const auto dtype = floating_dtype(input.scalar_type());
  const auto scale = sum_scale(op, group_.size);
  std::optional<UnitKey> key;  // without a name
  if (group_.two_tier() && dtype && scale && output.device() == input.device() && input.numel() > 0 &&
      input.layout() == at::kStrided && output.scalar_type() == input.scalar_type()) {
    key = UnitKey{.name = {}, .num_elements = input.numel(), .dtype = *dtype, .collective = collective};
  }
  const UnitCall* const told = registry_->told();
  std::optional<Reduction> gradient = told != nullptr && key ? told->reduction(*key, input.is_cuda())
                                                             : recogniser_.unit_of_this_call(output, input, key);
  if (gradient) {
    gradient->scale = *scale;
  }
  return gradient;
}

WorkPtr BackendIsthmus::submit_reduction(Side& side, const at::Tensor& output, const at::Tensor& input,
                                         Reduction gradient, std::chrono::milliseconds timeout) {
  const UnitKey& unit = gradient.unit->key;
  const DataType dtype = unit.dtype;
  TwoTierCall call;
  call.operation.unit = unit.name;
  call.operation.tensor = describe(input.numel(), input);
  call.output = output;
  call.timeout = timeout_or_default(timeout);
  if (unit.collective == Collective::kReduceScatter) {
    TORCH_CHECK_VALUE(input.numel() == output.numel() * group_.size, "isthmus: reduce-scatter of ", input.numel(),
                      " elements into ", output.numel(), " over ", group_.size, " ranks: expected ",
                      output.numel() * group_.size);
    call.operation.operation = "reduce-scatter";
    call.type = c10d::OpType::_REDUCE_SCATTER_BASE;
    call.title = "isthmus:reduce_scatter";
    call.input = contiguous(input);
    call.input_is_copy = !call.input.is_same(input);
    call.written = contiguous_stand_in(output);
    if (call.input_is_copy) {
      gradient.input_stream.reset();  // the current stream copies
    }
    call.run = [data = typed_buffer(call.input, dtype), shard = typed_buffer(call.written, dtype),
                gradient = std::move(gradient)](Communicator& communicator, Stream stream) {
      return communicator.reduce_scatter(data, shard, gradient, stream);
    };
  } else {
    call.operation.operation = "all-reduce";
    call.type = c10d::OpType::ALLREDUCE;
    call.title = "isthmus:all_reduce";
    call.input = input;
    call.written = contiguous(input);
    if (!call.written.is_same(input)) {
      gradient.input_stream.reset();
    }
    call.run = [data = typed_buffer(call.written, dtype), gradient = std::move(gradient)](Communicator& communicator,
                                                                                          Stream stream) {
      return communicator.all_reduce(data, gradient, stream);
    };
  }
  return submit(side, std::move(call));
}

WorkPtr BackendIsthmus::combined(c10d::OpType type, std::vector<WorkPtr> works,
                                 const std::vector<at::Tensor>& outputs) const {
  std::erase(works, nullptr);  // null Works: the caller's stream alone runs these operations
  if (works.size() < 2) {
    return works.empty() ? nullptr : works.front();
  }
  return c10::make_intrusive<CombinedWork>(group_.rank, type, std::move(works), outputs);
}

WorkPtr BackendIsthmus::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  Side& side = arrived("allreduce", tensors);
  if (tensors.size() == 1) {
    if (const auto gradient = gradient_of(tensors[0], tensors[0], Collective::kAllReduce, options.reduceOp)) {
      return submit_reduction(side, tensors[0], tensors[0], *gradient, options.timeout);
    }
  }
  StandIns own("allreduce", tensors, side.abilities().checks_layouts ? nullptr : has_gaps);
  premultiply_in_place(own.tensors(), options.reduceOp, side.abilities());
  const bool is_sparse = !tensors.empty() && tensors[0].is_sparse();  // Gloo gathers what all have
  const int64_t bytes = payload_bytes(tensors);
  const BorderTraffic crossing = is_sparse ? border_.all_gather(bytes) : border_.all_reduce(bytes);
  return forward(side, "allreduce", crossing, [&](c10d::Backend& world) {
    return own.written_back(world.allreduce(own.tensors(), with_plain_sum(options, side.abilities())));
  });
}

WorkPtr BackendIsthmus::allreduce_sparse(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  Side& side = arrived("allreduce_sparse", tensors);
  counters_.count_exact(Reason::kSparse);
  return forward(side, "allreduce_sparse", border_.all_gather(payload_bytes(tensors)),  // as Gloo does it
                 [&](c10d::Backend& world) { return world.allreduce_sparse(tensors, options); });
}

WorkPtr BackendIsthmus::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                            const c10d::AllreduceCoalescedOptions& options) {
  Side& side = arrived("allreduce_coalesced", tensors);
  std::vector<WorkPtr> works;
  std::vector<at::Tensor> plain;
  for (const auto& tensor : tensors) {
    if (const auto gradient = gradient_of(tensor, tensor, Collective::kAllReduce, options.reduceOp)) {
      Side& own = side_of("allreduce_coalesced", tensor);
      works.push_back(submit_reduction(own, tensor, tensor, *gradient, options.timeout));
    } else {
      plain.push_back(tensor);
    }
  }
  if (works.empty() || !plain.empty()) {
    premultiply_in_place(plain, options.reduceOp, side.abilities());
    const BorderTraffic crossing = border_.all_reduce(payload_bytes(plain));
    works.push_back(forward(side, "allreduce_coalesced", crossing, [&](c10d::Backend& world) {
      return world.allreduce_coalesced(plain, with_plain_sum(options, side.abilities()));
    }));
  }
  return combined(c10d::OpType::ALLREDUCE_COALESCED, std::move(works), tensors);
}

WorkPtr BackendIsthmus::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) {
  Side& side = arrived("reduce", tensors);
  // Ranks other than the root keep their inputs unchanged.
  StandIns own("reduce", tensors, side.abilities().checks_layouts ? nullptr : has_gaps,
               /*written=*/options.rootRank == group_.rank);
  for (auto& tensor : own.tensors()) {
    tensor = premultiplied(tensor, options.reduceOp, side.abilities());
  }
  const BorderTraffic crossing = border_.reduce(payload_bytes(tensors), static_cast<int>(options.rootRank));
  return forward(side, "reduce", crossing, [&](c10d::Backend& world) {
    return own.written_back(world.reduce(own.tensors(), with_plain_sum(options, side.abilities())));
  });
}

WorkPtr BackendIsthmus::reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                       const c10d::ReduceScatterOptions& options) {
  Side& side = arrived("reduce_scatter", outputs);
  counters_.count_exact(Reason::kLists);
  bool (*const needs_stand_in)(const at::Tensor&) = side.abilities().checks_layouts ? nullptr : is_not_contiguous;
  std::vector<std::vector<at::Tensor>> products;
  for (const auto& list : inputs) {
    auto& product =
        products.emplace_back(StandIns("reduce_scatter", list, needs_stand_in, /*written=*/false).tensors());
    for (auto& tensor : product) {
      tensor = premultiplied(tensor, options.reduceOp, side.abilities());
    }
  }
  StandIns own("reduce_scatter", outputs, needs_stand_in);
  return forward(side, "reduce_scatter", border_.reduce_scatter(payload_bytes(outputs)), [&](c10d::Backend& world) {
    return own.written_back_by_waiter(
        world.reduce_scatter(own.tensors(), products, with_plain_sum(options, side.abilities())));
  });
}

WorkPtr BackendIsthmus::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::ReduceScatterOptions& options) {
  Side& side = arrived("_reduce_scatter_base", input);
  if (const auto gradient = gradient_of(output, input, Collective::kReduceScatter, options.reduceOp)) {
    return submit_reduction(side, output, input, *gradient, options.timeout);
  }
  at::Tensor shard = at_least_1d(output);
  at::Tensor product = at_least_1d(premultiplied(input, options.reduceOp, side.abilities()));
  return forward(side, "_reduce_scatter_base", border_.reduce_scatter(payload_bytes(output)),
                 [&](c10d::Backend& world) {
                   return world._reduce_scatter_base(shard, product, with_plain_sum(options, side.abilities()));
                 });
}

WorkPtr BackendIsthmus::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                        std::vector<at::Tensor>& inputs,
                                                        const c10d::ReduceScatterOptions& options) {
  Side& side = arrived("reduce_scatter_tensor_coalesced", inputs);
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "isthmus: reduce-scatter of ", inputs.size(), " tensors into ",
                    outputs.size());
  std::vector<WorkPtr> works;
  std::vector<at::Tensor> plain_outputs;
  std::vector<at::Tensor> plain_inputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (const auto gradient = gradient_of(outputs[i], inputs[i], Collective::kReduceScatter, options.reduceOp)) {
      Side& own = side_of("reduce_scatter_tensor_coalesced", inputs[i]);
      works.push_back(submit_reduction(own, outputs[i], inputs[i], *gradient, options.timeout));
    } else {
      plain_outputs.push_back(at_least_1d(outputs[i]));
      plain_inputs.push_back(at_least_1d(premultiplied(inputs[i], options.reduceOp, side.abilities())));
    }
  }
  if (works.empty() || !plain_outputs.empty()) {
    const BorderTraffic crossing = border_.reduce_scatter(payload_bytes(plain_outputs));
    works.push_back(forward(side, "reduce_scatter_tensor_coalesced", crossing, [&](c10d::Backend& world) {
      return world.reduce_scatter_tensor_coalesced(plain_outputs, plain_inputs,
                                                   with_plain_sum(options, side.abilities()));
    }));
  }
  return combined(c10d::OpType::_REDUCE_SCATTER_BASE, std::move(works), outputs);
}

}  // namespace isthmus::torch_backend
