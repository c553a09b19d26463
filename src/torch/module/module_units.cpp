#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <array>
#include <variant>

#include "torch/base/tensors.h"
#include "torch/module/bindings.h"

namespace isthmus::torch_backend {
namespace {

using namespace py::literals;

constexpr std::array kReductions{Collective::kReduceScatter, Collective::kAllReduce};
constexpr std::array kFloatingTypes{DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16, DataType::kFloat64};

// Returns the member of `values` whose to_string() is `text`.
template <typename Values>
auto named(const Values& values, const std::string& text, const char* what) {
  for (const auto value : values) {
    if (text == to_string(value)) {
      return value;
    }
  }
  throw py::value_error(std::string("unit state: there is no ") + what + " \"" + text + "\"");
}

using SectionsPtr = std::shared_ptr<Sections>;

SectionsPtr make_sections(const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  std::vector<Section> sections;
  sections.reserve(pairs.size());
  for (const auto& [parameter, num_elements] : pairs) {
    sections.push_back({parameter, num_elements});
  }
  return std::make_shared<Sections>(sections);
}

// Takes the memory along.
at::Tensor tensor_of(std::vector<float>& values) {
  const auto owner = std::make_shared<std::vector<float>>(std::move(values));
  return at::from_blob(
      owner->data(), {static_cast<int64_t>(owner->size())}, [owner](void*) {}, at::kFloat);
}

std::vector<float> values_of(const py::handle& residual, const std::string& unit) {
  const auto tensor = residual.cast<at::Tensor>();
  TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous(),
                    "isthmus: residual of unit ", unit, ": expected a contiguous float32 tensor on the CPU, got ",
                    tensor.scalar_type(), " on ", tensor.device());
  return {tensor.const_data_ptr<float>(), tensor.const_data_ptr<float>() + tensor.numel()};
}

py::dict to_dict(UnitState& unit) {
  return py::dict("name"_a = unit.key.name, "num_elements"_a = unit.key.num_elements,
                  "dtype"_a = to_string(unit.key.dtype), "collective"_a = to_string(unit.key.collective),
                  "layout"_a = unit.key.layout, "step"_a = unit.step, "scale"_a = unit.scale,
                  "residual"_a = tensor_of(unit.residual), "result_residual"_a = tensor_of(unit.result_residual),
                  "is_held"_a = unit.is_held, "parameters"_a = unit.parameters);
}

py::list list_of_units(std::vector<UnitState> units) {
  py::list list;
  for (UnitState& unit : units) {
    list.append(to_dict(unit));
  }
  return list;
}

UnitState from_dict(const py::dict& state) {
  UnitState unit;
  unit.key.name = state["name"].cast<std::string>();
  unit.key.num_elements = state["num_elements"].cast<int64_t>();
  unit.key.dtype = named(kFloatingTypes, state["dtype"].cast<std::string>(), "dtype");
  unit.key.collective = named(kReductions, state["collective"].cast<std::string>(), "collective");
  unit.key.layout = state["layout"].cast<uint64_t>();
  unit.step = state["step"].cast<uint64_t>();
  unit.scale = state["scale"].cast<double>();
  unit.residual = values_of(state["residual"], unit.key.name);
  unit.result_residual = values_of(state["result_residual"], unit.key.name);
  unit.is_held = state["is_held"].cast<bool>();
  unit.parameters = state["parameters"].cast<std::string>();
  return unit;
}

py::object of_python(c10d::Backend& group) {
  return py::cast(c10::intrusive_ptr<BackendIsthmus>::reclaim_copy(static_cast<BackendIsthmus*>(&group)));
}

void bind_calls(py::module_& module) {
  py::class_<Sections, SectionsPtr>(module, "Sections",
                                    "Parameters of a reduction, by place in their unit, with their elements in a row.")
      .def(py::init(&make_sections), "pairs"_a);
  py::class_<UnitHandle, UnitHandlePtr>(
      module, "Unit",
      "A unit of one process group (src/torch/units/unit_handle.h). Its state lives as long as it is held.")
      .def_readonly("name", &UnitHandle::name)
      .def_readonly("parameters", &UnitHandle::parameters);
  py::class_<UnitCall>(module, "UnitCall",
                       "In `with` the calls of this thread are of that unit. `exact` says why such a call must stay "
                       "exact; the other arguments are fields of UnitCall (src/torch/units/unit_handle.h).")
      .def(py::init([](UnitHandlePtr unit, SectionsPtr sections, SectionsPtr with_gradients,
                       std::optional<Reason> exact, bool in_halves) {
             return UnitCall{std::move(unit), std::move(sections), std::move(with_gradients), exact, in_halves};
           }),
           py::arg("unit").none(false), "sections"_a = SectionsPtr(), "with_gradients"_a = SectionsPtr(),
           "exact"_a = py::none(), "in_halves"_a = false)
      .def_readonly("unit", &UnitCall::unit)
      .def_readwrite("in_halves", &UnitCall::in_halves)
      .def_property(
          "input_stream",
          [](const UnitCall& self) {
            return self.input_stream ? std::optional(reinterpret_cast<uintptr_t>(self.input_stream->handle))
                                     : std::nullopt;
          },
          [](UnitCall& self, std::optional<uintptr_t> stream) {
            // NOLINTNEXTLINE(performance-no-int-to-ptr): Python has a stream as a number
            self.input_stream = stream ? std::optional(Stream{reinterpret_cast<void*>(*stream)}) : std::nullopt;
          },
          "Calls on CUDA tensors begin behind the present work of this cudaStream_t, which wrote their inputs; a "
          "gather's output is that stream's as well, a reduction's is the current stream's. None: they begin behind "
          "the current stream.")
      .def("__enter__",
           [](UnitCall& self) {
             TORCH_CHECK(told_call != &self, "isthmus: this thread makes this call already");
             self.outer = std::exchange(told_call, &self);
           })
      .def("__exit__", [](const UnitCall& self, const py::args& /*error*/) { told_call = self.outer; });
  module.def(
      "push_name", &push_name, "name"_a,
      "Reductions of this thread that nothing else tells of are gradients of the unit `name`, until pop_name().");
  module.def("pop_name", &pop_name, "Ends the innermost push_name() of this thread.");
  module.def(
      "name_parameter", &name_parameter, "parameter"_a, "units"_a,
      "Reductions of this parameter's gradient are of these units, each in its group, as long as they are held.");
  module.def(
      "set_pass_function", [](std::function<void()> function) { pass_function = std::move(function); }, "function"_a,
      "What is called as a forward pass of FSDP2 begins, on its thread, before it gathers anything.");
  module.def(
      "set_fsdp_caller",
      [](py::object function) {
        fsdp_caller = [function = function.release()](c10d::Backend& group, const at::Tensor& output,
                                                      const at::Tensor& input) {
          const py::gil_scoped_acquire gil;
          return function(of_python(group), output, input).cast<FsdpAnswer>();
        };
      },
      "caller"_a,
      "What is asked in reductions that FSDP labels. caller(backend, output, input) returns None if it is not FSDP "
      "that "
      "makes the call.");
  module.def(
      "set_weights_caller",
      [](py::object function) {
        weights_caller = [function = function.release()](c10d::Backend& group) {
          const py::gil_scoped_acquire gil;
          return function(of_python(group)).cast<UnitHandlePtr>();
        };
      },
      "caller"_a,
      "What is asked in gathers with weights=delta whose caller tells of no unit. caller(backend) returns None if the "
      "call gathers no parameters.");
}

}  // namespace

void bind_units(py::module_& module, BackendClass& backend) {
  bind_calls(module);
  backend
      .def(
          "unit",
          [](BackendIsthmus& self, std::string name, uint64_t layout, std::optional<Reason> exact,
             std::string parameters, bool counted) {
            return self.registry().make(std::move(name), layout, exact, std::move(parameters), counted);
          },
          "name"_a, "layout"_a = 0, "exact"_a = py::none(), "parameters"_a = "", "counted"_a = false,
          "Makes a unit; see UnitHandle. counted: units of equal names are \"name\", \"name (2)\", in the order "
          "in "
          "which they are made.")
      .def(
          "has", [](BackendIsthmus& self, const UnitHandle& unit) { return unit.is_of(self.registry()); }, "unit"_a)
      .def(
          "unit_states", [](BackendIsthmus& self) { return list_of_units(self.units().states()); },
          "The state of all units, copied.")
      .def(
          "end", [](BackendIsthmus& self, bool undo) { return list_of_units(self.end(undo)); }, "undo"_a,
          "Aborts the group, closes its connections, and returns unit_states(); undo: as they were at begin_step().")
      .def(
          "begin_step",
          [](BackendIsthmus& self, std::optional<uint64_t> step, const UnitHandles& units) {
            self.units().run_everywhere("isthmus:begin_step", units, [step](UnitStates& states, const Units& meant) {
              states.begin_step(step, meant);
            });
          },
          "step"_a = py::none(), "units"_a = py::none(),
          "Begins a step of these units that may be undone; with `step` they count their reductions from it on.")
      .def(
          "undo_step",
          [](BackendIsthmus& self, const UnitHandles& units) {
            self.units().run_everywhere("isthmus:undo_step", units,
                                        [](UnitStates& states, const Units& meant) { states.undo_step(meant); });
          },
          "units"_a = py::none(), "Restores the residuals that units had at begin_step().")
      .def(
          "load_unit", [](BackendIsthmus& self, const py::dict& state) { self.units().load(from_dict(state)); },
          "state"_a, "The unit with this name, shape and layout has this state from its next reduction on.")
      .def(
          "clear_units", [](BackendIsthmus& self, const UnitHandles& units) { self.units().clear(units); },
          "units"_a = py::none())
      .def(
          "scale_residuals",
          [](BackendIsthmus& self, double factor, const UnitHandles& units) {
            self.units().scale_residuals(factor, units);
          },
          "factor"_a, "units"_a = py::none())
      .def(
          "skip_step",
          [](BackendIsthmus& self, const UnitHandles& units) {
            const auto num_lost = std::make_shared<int64_t>(0);
            self.units().run_everywhere("isthmus:skip_step", units, [num_lost](UnitStates& states, const Units& meant) {
              *num_lost += states.skip_step(meant);
            });
            return *num_lost;
          },
          "units"_a = py::none(),
          "Undoes a step whose result was thrown away, and counts it. Returns how many units lost residuals.")
      .def(
          "count_dropped", [](BackendIsthmus& self, int64_t num_units) { self.units().count_dropped(num_units); },
          "num_units"_a);
}

}  // namespace isthmus::torch_backend
