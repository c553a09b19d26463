#include "torch/module/module_units.h"

#include <ATen/ops/empty.h>
#include <pybind11/stl.h>

#include <array>

#include "torch/base/input_stream.h"
#include "torch/base/tensors.h"

namespace isthmus::torch_backend {
namespace {

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

// Makes a tag from Python's tuple of name, layout, exact, owner, sections.
UnitTag tag_from(const py::object& answer) {
  auto [name, layout, exact, owner, sections] =
      answer.cast<std::tuple<std::string, uint64_t, std::optional<Reason>, uint64_t, SectionsPtr>>();
  return {std::move(name), layout, exact, owner, std::move(sections)};
}

SectionsPtr make_sections(const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  std::vector<Section> sections;
  sections.reserve(pairs.size());
  for (const auto& [parameter, num_elements] : pairs) {
    sections.push_back({parameter, num_elements});
  }
  return std::make_shared<Sections>(std::move(sections));
}

py::list pairs_of(const std::shared_ptr<const Sections>& sections) {
  py::list pairs;
  for (const Section& section : sections != nullptr ? sections->all() : std::vector<Section>{}) {
    pairs.append(py::make_tuple(section.parameter, section.num_elements));
  }
  return pairs;
}

py::list list_of_parked(const std::vector<ParkedState>& parked) {
  py::list list;
  for (const ParkedState& one : parked) {
    list.append(py::make_tuple(one.of_result, one.piece, one.parameter, one.begin, one.values.num_elements));
  }
  return list;
}

// Returns parked states whose values are consecutive views of `values`.
std::vector<ParkedState> parked_from(const py::object& list, const at::Tensor& values) {
  std::vector<ParkedState> parked;
  int64_t begin = 0;
  const int64_t num_values = values.numel();
  for (const auto& [of_result, piece, parameter, first, num_elements] :
       list.cast<std::vector<std::tuple<bool, int64_t, int64_t, int64_t, int64_t>>>()) {
    if (num_elements < 0 || num_elements > num_values - begin) {
      throw py::value_error("unit state: parked parts have more elements than the " + std::to_string(num_values) +
                            " that are given");
    }
    const ConstBuffer all{values.const_data_ptr(), num_values, DataType::kFloat32};
    parked.push_back({of_result, piece, parameter, first, all.slice(begin, num_elements)});
    begin += num_elements;
  }
  return parked;
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
                  "result_residual"_a = tensor_or_empty(unit.result_residual), "owner"_a = unit.key.owner,
                  "sections"_a = pairs_of(unit.key.sections), "parked"_a = list_of_parked(unit.parked),
                  "parked_values"_a = tensor_or_empty(unit.parked_values));
}

py::list list_of_units(const std::vector<SavedUnit>& units) {
  py::list list;
  for (const SavedUnit& unit : units) {
    list.append(to_dict(unit));
  }
  return list;
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
  unit.key.owner = state["owner"].cast<uint64_t>();
  if (py::len(state["sections"]) > 0) {
    unit.key.sections = make_sections(state["sections"].cast<std::vector<std::pair<int64_t, int64_t>>>());
    unit.key.layout = unit.key.sections->hash();
  }
  unit.parked_values = state["parked_values"].cast<at::Tensor>().to(at::kCPU, at::kFloat).contiguous();
  unit.parked = parked_from(state["parked"], unit.parked_values);
  return unit;
}

void set_python_fsdp_caller(py::object caller) {
  using Found = std::optional<std::tuple<py::tuple, std::optional<at::Tensor>>>;
  fsdp_caller = [function = caller.release()](const at::Tensor& output, const at::Tensor& input) {
    const py::gil_scoped_acquire gil;
    std::optional<FsdpCaller> found;
    if (auto answer = function(output, input).template cast<Found>()) {
      auto& [tag, flat_parameter] = *answer;
      found = FsdpCaller{tag_from(tag), std::nullopt};
      if (flat_parameter) {
        found->flat_parameter.emplace(flat_parameter->getIntrusivePtr());
      }
    }
    return found;
  };
}

void set_python_weights_caller(py::object caller) {
  weights_caller = [function = caller.release()] {
    const py::gil_scoped_acquire gil;
    auto [owner, name] = function().template cast<std::tuple<uint64_t, std::string>>();
    return WeightsCaller{owner, std::move(name)};
  };
}

void bind_tags(py::module_& module) {
  using namespace py::literals;
  py::class_<Sections, SectionsPtr>(module, "Sections",
                                    "Parameters of a reduction, by place in their unit, with their elements in a row.")
      .def(py::init(&make_sections), "pairs"_a)
      .def_property_readonly("row_elements", &Sections::row_elements)
      .def_property_readonly("hash", &Sections::hash);
  module.def(
      "push_unit",
      [](std::string name, uint64_t layout, std::optional<Reason> exact, uint64_t owner, SectionsPtr sections,
         bool by_user, bool in_halves) {
        push_unit({{std::move(name), layout, exact, owner, std::move(sections)}, by_user, in_halves, {}});
      },
      "name"_a, "layout"_a = 0, "exact"_a = py::none(), "owner"_a = 0, "sections"_a = SectionsPtr(),
      "by_user"_a = false, "in_halves"_a = false,
      "Reductions of this thread are gradients of this unit, and gathers its weights, until pop_unit(). layout: 0 if "
      "unknown. exact: why the unit must stay exact; None if it need not. owner: a number of what reduces, 0 if "
      "unknown. sections: of FSDP2. by_user: what FSDP reduces and gathers meanwhile is FSDP's, and several reductions "
      "of one shape are units of their own. in_halves: of a gather on a GPU the Work's wait() does the second half, in "
      "an order that is equal on all ranks.");
  module.def("pop_unit", &pop_unit, "Ends the innermost push_unit() of this thread.");
  module.def(
      "set_input_stream",
      [](std::optional<uintptr_t> stream) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): Python has a stream as a number
        input_stream() = stream ? std::optional(Stream{reinterpret_cast<void*>(*stream)}) : std::nullopt;
      },
      "stream"_a,
      "Collectives of this thread on CUDA tensors begin behind the present work of this cudaStream_t, which wrote "
      "their inputs; a gather's output is that stream's as well, a reduce-scatter's is the current stream's. None: "
      "they begin behind the current stream.");
  module.def(
      "name_parameter",
      [](const at::Tensor& parameter, std::string name, uint64_t layout, std::optional<Reason> exact, uint64_t owner) {
        name_parameter(parameter, {std::move(name), layout, exact, owner});
      },
      "parameter"_a, "name"_a, "layout"_a, "exact"_a, "owner"_a = 0,
      "Names the reductions of this parameter's gradient: those that FSDP1 issues from the post-backward hook of a "
      "flat parameter, and those of a DTensor that is gathered before it is used.");
  module.def(
      "set_pass_function",
      [](py::object function) {
        pass_function = [own = function.release()] {
          const py::gil_scoped_acquire gil;
          own();
        };
      },
      "function"_a, "What is called as a forward pass of FSDP2 begins, on its thread, before it gathers anything.");
  module.def("set_fsdp_caller", &set_python_fsdp_caller, "caller"_a,
             "What is asked in reductions that FSDP labels. caller(output, input) returns None if it is not FSDP that "
             "makes the call, else (unit, flat_parameter). unit: name, layout, exact, owner and sections, as of "
             "push_unit. flat_parameter: of FSDP1, where it stands for the name.");
  module.def("set_weights_caller", &set_python_weights_caller, "caller"_a,
             "What is asked in gathers with weights=delta that have no tag. caller() returns (owner, name): owner: a "
             "number of the object that gathers its parameters, 0 if there is none.");
  module.def("forget_owner", &forget_owner, "owner"_a,
             "The owner is gone: what groups keep of its units and weights is freed at their next call.");
}

}  // namespace

void bind_units(py::module_& module, BackendClass& backend) {
  using namespace py::literals;
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  bind_tags(module);
  backend
      .def(
          "unit_states", [](BackendIsthmus& self) { return list_of_units(self.units().states()); },
          "The state of this rank's units, copied.")
      .def(
          "end", [](BackendIsthmus& self, bool undo) { return list_of_units(self.end(undo)); }, "undo"_a,
          "Aborts the group, closes its connections, and returns unit_states(); undo: as they were at begin_step().")
      .def(
          "begin_step",
          [](BackendIsthmus& self, std::optional<uint64_t> step, const Owners& owners) {
            self.units().begin_step(step, owners);
          },
          unlocked, "step"_a = py::none(), "owners"_a = py::none(),
          "Begins a step of these owners' units that may be undone; with `step` they count their reductions from it "
          "on.")
      .def(
          "undo_step", [](BackendIsthmus& self) { self.units().undo_step(); },
          "Restores the residuals that units had at begin_step().")
      .def(
          "load_unit", [](BackendIsthmus& self, const py::dict& state) { self.units().load(from_dict(state)); },
          "state"_a)
      .def(
          "clear_units", [](BackendIsthmus& self, const Owners& owners) { self.units().clear(owners); }, unlocked,
          "owners"_a = py::none(), "Of these owners; None: all.")
      .def(
          "scale_residuals",
          [](BackendIsthmus& self, double factor, const Owners& owners) {
            self.units().scale_residuals(factor, owners);
          },
          unlocked, "factor"_a, "owners"_a = py::none())
      .def(
          "skip_step", [](BackendIsthmus& self, const Owners& owners) { return self.units().skip_step(owners); },
          unlocked, "owners"_a = py::none(),
          "Undoes a step whose result was thrown away, and counts it. Returns how many units lost residuals.")
      .def(
          "count_dropped", [](BackendIsthmus& self, int64_t num_units) { self.units().count_dropped(num_units); },
          unlocked, "num_units"_a);
}

}  // namespace isthmus::torch_backend
