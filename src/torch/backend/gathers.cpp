// All-gathers: in two tiers, or by the world backend.
#include <algorithm>
#include <utility>

#include "communicator/plan/policy.h"
#include "communicator/units/unit.h"
#include "torch/backend/backend.h"
#include "torch/base/tensors.h"
#include "torch/works/stand_ins.h"

namespace isthmus::torch_backend {
namespace {

// Returns the tensor whose equal, consecutive chunks are `parts`; undefined if there is none.
at::Tensor whole_of(const std::vector<at::Tensor>& parts) {
  const at::Tensor& first = parts.front();
  const auto* place = static_cast<const std::byte*>(first.const_data_ptr());
  for (const at::Tensor& part : parts) {
    if (!part.is_contiguous() || part.numel() != first.numel() || part.scalar_type() != first.scalar_type() ||
        !part.is_alias_of(first) || part.const_data_ptr() != place) {
      return {};
    }
    place += part.nbytes();
  }
  const at::NoGradGuard no_grad;
  return first.as_strided({first.numel() * static_cast<int64_t>(parts.size())}, {1});
}

}  // namespace

bool BackendIsthmus::takes_two_tiers(const at::Tensor& output, const at::Tensor& input) const {
  return group_.two_tier() && output.numel() > 0 && is_large(group_.options, output.numel()) &&
         output.numel() == input.numel() * group_.size && output.scalar_type() == input.scalar_type() &&
         output.layout() == at::kStrided && output.device() == input.device();
}

UnitPtr BackendIsthmus::unit_of_gather(const at::Tensor& output) {
  if (!group_.options.sends_differences()) {
    return nullptr;
  }
  const UnitCall* const told = registry_->told();
  const UnitHandlePtr unit = told != nullptr ? told->unit : weights_caller ? weights_caller(*this) : nullptr;
  if (unit == nullptr) {
    return nullptr;
  }
  UnitKey key;
  key.name = unit->name;
  key.dtype = floating_dtype(output.scalar_type()).value_or(DataType::kByte);
  key.num_elements = key.dtype == DataType::kByte ? static_cast<int64_t>(output.nbytes()) : output.numel();
  key.collective = Collective::kAllGather;
  return unit->of_calls(key, output.is_cuda());
}

WorkPtr BackendIsthmus::submit_gather(Side& side, const at::Tensor& output, const at::Tensor& input,
                                      std::chrono::milliseconds timeout, const UnitPtr& unit) {
  TwoTierCall call;
  call.operation.operation = "all-gather";
  call.operation.tensor = describe(output.numel(), input);
  call.type = c10d::OpType::_ALLGATHER_BASE;
  call.title = "isthmus:all_gather";
  call.input = contiguous(input);
  call.input_is_copy = !call.input.is_same(input);
  call.output = output;
  call.written = contiguous_stand_in(output);
  call.timeout = timeout_or_default(timeout);
  // The input is a part of the output where FSDP2 gathers, so the stream that wrote it is the one that owns both.
  const bool is_copied = call.input_is_copy || !call.written.is_same(output);
  const UnitCall* const told = registry_->told();
  const auto owner = is_copied || told == nullptr ? std::nullopt : told->input_stream;
  if (unit == nullptr) {
    call.run = [shard = byte_buffer(call.input), gathered = byte_buffer(call.written), owner](
                   Communicator& communicator, Stream stream) {
      return communicator.all_gather(shard, gathered, owner.value_or(stream));
    };
    return submit(side, std::move(call));
  }
  const UnitKey& key = unit->key;
  call.operation.unit = key.name;
  const Buffer gathered{call.written.data_ptr(), key.num_elements, key.dtype};
  const ConstBuffer shard{call.input.const_data_ptr(), key.num_elements / group_.size, key.dtype};
  call.in_halves = told != nullptr && told->in_halves;
  call.begin = [shard, gathered, unit, owner](Communicator& communicator, Stream stream) {
    return communicator.gather_weights(shard, gathered, unit, owner.value_or(stream));
  };
  return submit(side, std::move(call));
}

WorkPtr BackendIsthmus::gather_tensor(Side& side, at::Tensor output, at::Tensor input,
                                      const c10d::AllgatherOptions& options) {
  if (takes_two_tiers(output, input)) {
    return submit_gather(side, output, input, options.timeout, unit_of_gather(output));
  }
  if (output.is_contiguous()) {  // Gloo requires matching shapes, the two-tier path does not
    output = output.view({-1});
    input = input.reshape({-1});
  }
  output = at_least_1d(output);
  input = at_least_1d(input);
  return forward(side, "_allgather_base", border_.all_gather(payload_bytes(input)),
                 [&](c10d::Backend& world) { return world._allgather_base(output, input, options); });
}

WorkPtr BackendIsthmus::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  return gather_tensor(arrived("_allgather_base", input), output, input, options);
}

// FSDP1 calls this on the CPU with chunks of one tensor. Only weights=delta treats such chunks specially.
WorkPtr BackendIsthmus::allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                  const c10d::AllgatherOptions& options) {
  Side& side = arrived("allgather", inputs);
  if (group_.options.sends_differences() && inputs.size() == 1 && outputs.size() == 1 &&
      outputs[0].size() == static_cast<size_t>(group_.size)) {
    const at::Tensor output = whole_of(outputs[0]);
    const UnitPtr unit = output.defined() && takes_two_tiers(output, inputs[0]) ? unit_of_gather(output) : nullptr;
    if (unit != nullptr) {
      return submit_gather(side, output, inputs[0], options.timeout, unit);
    }
  }
  return forward(side, "allgather", border_.all_gather(payload_bytes(inputs)),
                 [&](c10d::Backend& world) { return world.allgather(outputs, inputs, options); });
}

WorkPtr BackendIsthmus::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                        std::vector<at::Tensor>& inputs,
                                                        const c10d::AllgatherOptions& options) {
  Side& side = arrived("allgather_into_tensor_coalesced", inputs);
  bool one_by_one = !outputs.empty() && outputs.size() == inputs.size();
  for (size_t i = 0; side.abilities().coalesced_gathers && one_by_one && i < outputs.size(); ++i) {
    one_by_one = takes_two_tiers(outputs[i], inputs[i]);
  }
  if (!one_by_one) {
    std::vector<at::Tensor> gathered = at_least_1d(outputs);
    std::vector<at::Tensor> shards = at_least_1d(inputs);
    return forward(
        side, "allgather_into_tensor_coalesced", border_.all_gather(payload_bytes(inputs)),
        [&](c10d::Backend& world) { return world.allgather_into_tensor_coalesced(gathered, shards, options); });
  }
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Side& own = side_of("allgather_into_tensor_coalesced", inputs[i]);
    works.push_back(gather_tensor(own, outputs[i], inputs[i], options));
  }
  return c10::make_intrusive<CombinedWork>(group_.rank, c10d::OpType::_ALLGATHER_BASE, std::move(works), outputs);
}

// Gathers one by one on the CPU: processes do not always survive Gloo's coalesced gathers (torch 2.11 to 2.15).
WorkPtr BackendIsthmus::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                            std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& options) {
  Side& side = arrived("allgather_coalesced", inputs);
  const bool fits =
      !inputs.empty() && outputs.size() == static_cast<size_t>(group_.size) &&
      std::all_of(outputs.begin(), outputs.end(), [&](const auto& of_rank) { return of_rank.size() == inputs.size(); });
  if (side.abilities().coalesced_gathers || !fits) {
    return forward(side, "allgather_coalesced", border_.all_gather(payload_bytes(inputs)),
                   [&](c10d::Backend& world) { return world.allgather_coalesced(outputs, inputs, options); });
  }
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<at::Tensor> input{inputs[i]};
    std::vector<std::vector<at::Tensor>> gathered(1);
    for (const auto& of_rank : outputs) {
      gathered[0].push_back(of_rank[i]);
    }
    works.push_back(forward(side, "allgather_coalesced", border_.all_gather(payload_bytes(input)),
                            [&](c10d::Backend& world) { return world.allgather(gathered, input, options); }));
  }
  return c10::make_intrusive<CombinedWork>(group_.rank, c10d::OpType::ALLGATHER_COALESCED, std::move(works),
                                           group_.size == 1 ? c10::IValue(outputs[0]) : c10::IValue(outputs));
}

}  // namespace isthmus::torch_backend
