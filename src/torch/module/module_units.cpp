#include "torch/module/module_units.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <pybind11/stl.h>

#include <array>

#include "codec/weights/weight_packet.h"
#include "torch/backend/tensors.h"

namespace isthmus::torch_backend {
namespace {

constexpr std::array kReductions{Collective::kReduceScatter, Collective::kAllReduce};
constexpr std::array kFloatingTypes{DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16, DataType::kFloat64};

// The one of `values` that to_string() calls `text`.
template <typename Values>
auto named(const Values& values, const std::string& text, const char* what) {
  for (const auto value : values) {
    if (text == to_string(value)) {
      return value;
    }
  }
  throw py::value_error(std::string("unit state: there is no ") + what + " \"" + text + "\"");
}

UnitTag make_tag(std::string name, uint64_t layout, const std::string& exact) {
  return {std::move(name), layout, interned(exact)};
}

py::object tensor_or_empty(const at::Tensor& tensor) {
  return py::cast(tensor.defined() ? tensor : at::empty({0}, at::kFloat));
}

py::dict to_dict(const SavedUnit& unit) {
  using namespace py::literals;
  return py::dict("name"_a = unit.key.name, "num_elements"_a = unit.key.num_elements,
                  "dtype"_a = to_string(unit.key.dtype), "collective"_a = to_string(unit.key.collective),
                  "layout"_a = unit.key.layout, "step"_a = unit.step, "scale"_a = unit.scale,
                  "residual"_a = tensor_or_empty(unit.residual),
                  "result_residual"_a = tensor_or_empty(unit.result_residual));
}

SavedUnit from_dict(const py::dict& state) {
  SavedUnit unit;
  unit.key.name = state["name"].cast<std::string>();
  unit.key.num_elements = state["num_elements"].cast<int64_t>();
  unit.key.dtype = named(kFloatingTypes, state["dtype"].cast<std::string>(), "dtype");
  unit.key.collective = named(kReductions, state["collective"].cast<std::string>(), "collective");
  unit.key.layout = state["layout"].cast<uint64_t>();
  unit.step = state["step"].cast<uint64_t>();
  unit.scale = state["scale"].cast<double>();
  unit.residual = state["residual"].cast<at::Tensor>();
  unit.result_residual = state["result_residual"].cast<at::Tensor>();
  return unit;
}

void set_python_fsdp_caller(py::object caller) {
  using Found = std::optional<std::tuple<std::string, uint64_t, std::string, std::optional<at::Tensor>>>;
  set_fsdp_caller([function = caller.release()](const at::Tensor& output, const at::Tensor& input) {
    const py::gil_scoped_acquire gil;
    std::optional<FsdpCaller> found;
    if (auto answer = function(output, input).template cast<Found>()) {
      auto& [name, layout, exact, flat_parameter] = *answer;
      found = FsdpCaller{make_tag(std::move(name), layout, exact), std::nullopt};
      if (flat_parameter) {
        found->flat_parameter.emplace(flat_parameter->getIntrusivePtr());
      }
    }
    return found;
  });
}

void set_python_weights_caller(py::object caller) {
  set_weights_caller([function = caller.release()] {
    const py::gil_scoped_acquire gil;
    auto [owner, name] = function().template cast<std::tuple<uint64_t, std::string>>();
    return WeightsCaller{owner, std::move(name)};
  });
}

ConstBuffer weights_of(const at::Tensor& tensor) {
  const auto dtype = floating_dtype(tensor.scalar_type());
  if (!tensor.is_contiguous() || !tensor.is_cpu() || !dtype) {
    throw py::value_error("weights: expected a contiguous tensor of floating-point numbers on the CPU");
  }
  return {tensor.const_data_ptr(), tensor.numel(), *dtype};
}

at::Tensor encode_weights(const at::Tensor& before, const at::Tensor& after) {
  const ConstBuffer old_weights = weights_of(before);
  const ConstBuffer new_weights = weights_of(after);
  if (old_weights.dtype != new_weights.dtype || old_weights.num_elements != new_weights.num_elements) {
    throw py::value_error("weights: expected two tensors of one type and size");
  }
  const int64_t most = WeightPackets::most_bytes(new_weights);
  const at::Tensor packet = at::empty({most + WeightPackets::kMarginBytes}, at::kByte);
  const int64_t bytes = WeightPackets().encode(old_weights, new_weights, {packet.data_ptr(), most, DataType::kByte});
  return packet.narrow(0, 0, bytes);
}

void decode_weights(const at::Tensor& packet, const at::Tensor& weights) {
  const at::Tensor with_margin = at::zeros({packet.numel() + WeightPackets::kMarginBytes}, at::kByte);
  with_margin.narrow(0, 0, packet.numel()).copy_(packet);
  const ConstBuffer replica = weights_of(weights);
  WeightPackets().decode({with_margin.const_data_ptr(), packet.numel(), DataType::kByte},
                         {weights.data_ptr(), replica.num_elements, replica.dtype});
}

void bind_tags(py::module_& module) {
  using namespace py::literals;
  module.attr("REPLICAS") = kReplicas;
  module.def(
      "push_unit",
      [](std::string name, uint64_t layout, const std::string& exact, bool by_user) {
        push_unit(make_tag(std::move(name), layout, exact), by_user);
      },
      "name"_a, "layout"_a, "exact"_a, "by_user"_a = false,
      "Reductions of this thread are gradients of this unit until pop_unit(). layout: 0 if unknown. exact: why the "
      "unit "
      "must stay exact; empty if it need not. by_user: what FSDP reduces meanwhile is FSDP's, and several reductions "
      "of "
      "one shape are units of their own.");
  module.def("pop_unit", &pop_unit, "Ends the innermost push_unit() of this thread.");
  module.def(
      "name_parameter",
      [](const at::Tensor& parameter, std::string name, uint64_t layout, const std::string& exact) {
        name_parameter(parameter, make_tag(std::move(name), layout, exact));
      },
      "parameter"_a, "name"_a, "layout"_a, "exact"_a,
      "Names the reductions of this parameter's gradient: those that FSDP1 issues from the post-backward hook of a "
      "flat "
      "parameter, and those of a DTensor that is gathered before it is used.");
  module.def("set_fsdp_caller", &set_python_fsdp_caller, "caller"_a,
             "What is asked in reductions that FSDP labels. caller(output, input) returns None if it is not FSDP that "
             "makes the "
             "call, else (name, layout, exact, flat_parameter): the last is None for FSDP2; for FSDP1 it stands for "
             "the name.");
  module.def(
      "set_weights_caller", &set_python_weights_caller, "caller"_a,
      "What is asked in gathers with weights=delta. caller() returns (owner, name): owner: a number of the object "
      "that gathers its parameters, 0 if there is none.");
  module.def(
      "encode_weights", &encode_weights, "before"_a, "after"_a,
      "The packet (uint8) that turns `before` into `after`, as weights=delta sends it; empty if they are equal.");
  module.def("decode_weights", &decode_weights, "packet"_a, "weights"_a,
             "Turns what the packet was made from into what it is.");
  module.def("forget_weights_of", &forget_weights_of, "owner"_a,
             "The owner is gone: what groups keep of its weights is freed at their next gather.");
}

}  // namespace

void bind_units(py::module_& module, BackendClass& backend) {
  using namespace py::literals;
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  bind_tags(module);
  backend
      .def(
          "unit_states",
          [](BackendIsthmus& self) {
            py::list states;
            for (const SavedUnit& unit : self.units().states()) {
              states.append(to_dict(unit));
            }
            return states;
          },
          "The state of this rank's units, copied.")
      .def(
          "load_unit", [](BackendIsthmus& self, const py::dict& state) { self.units().load(from_dict(state)); },
          "state"_a)
      .def(
          "clear_units", [](BackendIsthmus& self) { self.units().clear(); }, unlocked)
      .def(
          "scale_residuals", [](BackendIsthmus& self, double factor) { self.units().scale_residuals(factor); },
          unlocked, "factor"_a)
      .def(
          "count_step", [](BackendIsthmus& self) { self.units().count_step(); }, unlocked)
      .def(
          "count_skipped_step", [](BackendIsthmus& self) { self.units().count_skipped_step(); }, unlocked)
      .def("set_gradients", &BackendIsthmus::set_gradients, unlocked, "mode"_a);
}

}  // namespace isthmus::torch_backend
