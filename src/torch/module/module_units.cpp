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

// Python's form of a UnitTag, and of an FsdpCaller: a reason alone says why_not.
using Tag = std::tuple<std::string, uint64_t, std::optional<Reason>, uint64_t, SectionsPtr>;
using Caller = std::optional<std::variant<Reason, std::tuple<Tag, std::optional<at::Tensor>>>>;

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

py::dict to_dict(const SavedUnit& unit) {
  return py::dict("name"_a = unit.key.name, "num_elements"_a = unit.key.num_elements,
                  "dtype"_a = to_string(unit.key.dtype), "collective"_a = to_string(unit.key.collective),
                  "layout"_a = unit.key.layout, "step"_a = unit.step, "scale"_a = unit.scale,
                  "residual"_a = unit.residual, "result_residual"_a = unit.result_residual, "owner"_a = unit.key.owner,
                  "sections"_a = pairs_of(unit.key.sections), "parked"_a = list_of_parked(unit.parked),
                  "parked_values"_a = unit.parked_values);
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

void set_python_fsdp_caller(std::function<Caller(const at::Tensor&, const at::Tensor&)> function) {
  fsdp_caller = [function = std::move(function)](const at::Tensor& output, const at::Tensor& input) {
    std::optional<FsdpCaller> found;
    Caller answer = function(output, input);
    if (!answer) {
      return found;
    }
    if (const auto* why_not = std::get_if<Reason>(&*answer)) {
      found = FsdpCaller{.tag = {}, .flat_parameter = {}, .why_not = *why_not};
    } else {
      auto& [tag, flat_parameter] = std::get<1>(*answer);
      auto& [name, layout, exact, owner, sections] = tag;
      found = FsdpCaller{{std::move(name), layout, exact, owner, std::move(sections)}, std::nullopt};
      if (flat_parameter) {
        found->flat_parameter.emplace(flat_parameter->getIntrusivePtr());
      }
    }
    return found;
  };
}

// Binds a method of UnitStates, on all devices of a group.
template <typename Result, typename... Args>
auto on_all_devices(const char* name, Result (UnitStates::*method)(Args...)) {
  return [name, method](BackendIsthmus& self, Args... args) {
    self.units().run_everywhere(name, [=](Communicator& communicator) { (communicator.units().*method)(args...); });
  };
}

void bind_tags(py::module_& module) {
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
      "Reductions of this thread are gradients of this unit, and gathers its weights, until pop_unit(). The arguments "
      "are the fields of UnitTag and PushedUnit (src/torch/units/gradient_labels.h).");
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
      "Names the reductions of this parameter's gradient; the rest is a UnitTag.");
  module.def(
      "set_pass_function", [](std::function<void()> function) { pass_function = std::move(function); }, "function"_a,
      "What is called as a forward pass of FSDP2 begins, on its thread, before it gathers anything.");
  module.def("set_fsdp_caller", &set_python_fsdp_caller, "caller"_a,
             "What is asked in reductions that FSDP labels. caller(output, input) returns None if it is not FSDP that "
             "makes the call, else (unit, flat_parameter). unit: name, layout, exact, owner and sections, as of "
             "push_unit. flat_parameter: of FSDP1, where it stands for the name.");
  module.def(
      "set_weights_caller", [](std::function<WeightsCaller()> caller) { weights_caller = std::move(caller); },
      "caller"_a,
      "What is asked in gathers with weights=delta that have no tag. caller() returns (owner, name): owner: a number "
      "of the object that gathers its parameters, 0 if there is none.");
  module.def("forget_owner", &GoneOwners::add, "owner"_a,
             "The owner is gone: what groups keep of its units and weights is freed at their next call.");
}

}  // namespace

void bind_units(py::module_& module, BackendClass& backend) {
  bind_tags(module);
  backend
      .def(
          "unit_states", [](BackendIsthmus& self) { return list_of_units(self.units().states()); },
          "The state of this rank's units, copied.")
      .def(
          "end", [](BackendIsthmus& self, bool undo) { return list_of_units(self.end(undo)); }, "undo"_a,
          "Aborts the group, closes its connections, and returns unit_states(); undo: as they were at begin_step().")
      .def("begin_step", on_all_devices("isthmus:begin_step", &UnitStates::begin_step), "step"_a = py::none(),
           "owners"_a = py::none(),
           "Begins a step of these owners' units that may be undone; with `step` they count their reductions from it "
           "on.")
      .def("undo_step", on_all_devices("isthmus:undo_step", &UnitStates::undo_step), "owners"_a = py::none(),
           "Restores the residuals that units had at begin_step().")
      .def(
          "load_unit", [](BackendIsthmus& self, const py::dict& state) { self.units().load(from_dict(state)); },
          "state"_a)
      .def("clear_units", on_all_devices("isthmus:clear_units", &UnitStates::clear), "owners"_a = py::none(),
           "Of these owners; None: all.")
      .def("scale_residuals", on_all_devices("isthmus:scale_residuals", &UnitStates::scale_residuals), "factor"_a,
           "owners"_a = py::none())
      .def(
          "skip_step",
          [](BackendIsthmus& self, const Owners& owners) {
            const auto num_lost = std::make_shared<int64_t>(0);
            self.units().run_everywhere("isthmus:skip_step", [num_lost, owners](Communicator& communicator) {
              *num_lost += communicator.units().skip_step(owners);
            });
            return *num_lost;
          },
          "owners"_a = py::none(),
          "Undoes a step whose result was thrown away, and counts it. Returns how many units lost residuals.")
      .def(
          "count_dropped", [](BackendIsthmus& self, int64_t num_units) { self.units().count_dropped(num_units); },
          "num_units"_a);
}

}  // namespace isthmus::torch_backend
