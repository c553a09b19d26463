// isthmus._topology: what machines look like, for Python. No torch but its pybind11.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>

#include "topology/read.h"

namespace isthmus::topology {
namespace {

namespace py = pybind11;
using namespace py::literals;

// "" is None.
py::object text(const std::string& text) { return text.empty() ? py::none() : py::object(py::str(text)); }

// NVML as this process found it. It takes a while, and does not change.
const NvmlFacts& nvml() {
  static const NvmlFacts facts = read_nvml();
  return facts;
}

py::dict nvml_facts() {
  const NvmlFacts& facts = (py::gil_scoped_release(), nvml());
  py::dict fabrics;
  for (const Gpu& gpu : facts.gpus) {
    fabrics[py::str(gpu.bus_id)] = gpu.fabric;
  }
  return py::dict("driver"_a = facts.driver, "missing"_a = facts.missing, "fabrics"_a = fabrics);
}

template <typename Items, typename Describe>
py::list each(const Items& items, const Describe& describe) {
  py::list found;
  for (const auto& item : items) {
    found.append(describe(item));
  }
  return found;
}

// The host bridges that devices are below, with all on the way to these.
py::list pcie(const Machine& machine) {
  std::map<int, py::list> devices;  // at each place that is shown
  for (int device = 0; device < machine.num_devices(); ++device) {
    for (int at = machine.device(device).place; at != -1; at = machine.pcie[at].above) {
      devices[at];
    }
    devices[machine.device(device).place].append(machine.id(device));
  }
  devices.erase(-1);
  std::map<int, py::list> below;
  for (const auto& [place, at] : devices) {
    const PcieNode& one = machine.pcie[place];
    below[one.above].append(py::dict("kind"_a = one.kind, "bus_id"_a = text(one.bus_id), "devices"_a = at,
                                     "link_speed_gbit_s"_a = one.link_speed_gbit_s, "numa_node"_a = one.numa_node,
                                     "children"_a = below[place]));
  }
  return below[-1];
}

py::object fabric(const Gpu& gpu) {
  return gpu.fabric ? py::dict("cluster"_a = gpu.fabric->first, "clique"_a = gpu.fabric->second)
                    : py::object(py::none());
}

// The machine as the JSON of `isthmus topo` has it.
py::dict facts(const Machine& machine) {
  const auto sockets = each(machine.sockets, [&](const Socket& socket) {
    py::list inside;
    for (const NumaNode& node : machine.numa_nodes) {
      if (node.socket == socket.index) {
        inside.append(node.index);
      }
    }
    return py::dict("index"_a = socket.index, "numa_nodes"_a = inside, "model"_a = text(socket.model));
  });
  const auto numa_nodes = each(machine.numa_nodes, [](const NumaNode& node) {
    return py::dict("index"_a = node.index, "socket"_a = node.socket, "cpus"_a = text(node.cpus));
  });
  const auto gpus = each(machine.gpus, [](const Gpu& gpu) {
    return py::dict("index"_a = gpu.index, "bus_id"_a = text(gpu.bus_id), "model"_a = text(gpu.model),
                    "numa_node"_a = gpu.numa_node, "fabric"_a = fabric(gpu), "c2c_gbit_s"_a = gpu.c2c_gbit_s);
  });
  const auto nics = each(machine.nics, [](const Nic& nic) {
    return py::dict("index"_a = nic.index, "name"_a = text(nic.name), "bus_id"_a = text(nic.bus_id),
                    "kind"_a = nic.kind, "speed_gbit_s"_a = nic.speed_gbit_s, "numa_node"_a = nic.numa_node);
  });
  py::list links;
  for (int a = 0; a < machine.num_devices(); ++a) {
    for (int b = a + 1; b < machine.num_devices(); ++b) {
      links.append(py::dict("a"_a = machine.id(a), "b"_a = machine.id(b), "kind"_a = machine.link(a, b).kind,
                            "speed_gbit_s"_a = machine.link(a, b).speed_gbit_s));
    }
  }
  return py::dict("name"_a = machine.name, "source"_a = machine.source, "sockets"_a = sockets,
                  "numa_nodes"_a = numa_nodes, "gpus"_a = gpus, "nics"_a = nics, "links"_a = links,
                  "pcie"_a = pcie(machine), "notes"_a = machine.notes);
}

py::tuple rails(const Machine& machine, std::optional<int> ranks_per_node) {
  const Rails found = find_rails(machine, ranks_per_node);
  const auto describe = [&](const Rail& rail) {
    const auto id = [&](int nic) { return machine.id(static_cast<int>(machine.gpus.size()) + nic); };
    return py::dict("local_index"_a = rail.local_index, "gpu"_a = text(rail.gpu < 0 ? "" : machine.id(rail.gpu)),
                    "nics"_a = each(rail.nics, id), "distance"_a = text(rail.distance),
                    "num_sharing"_a = rail.num_sharing, "speed_gbit_s"_a = rail.speed_gbit_s);
  };
  return py::make_tuple(each(found.rails, describe), found.notes);
}

py::dict islands(const Machine& machine) {
  const Islands found = find_islands(machine);
  const auto ids = [&](const std::vector<int>& gpus) { return each(gpus, [&](int gpu) { return machine.id(gpu); }); };
  return py::dict("gpus"_a = each(found.gpus, ids), "by"_a = text(found.by), "distance"_a = text(found.distance),
                  "gbit_s"_a = found.gbit_s);
}

PYBIND11_MODULE(_topology, module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  module.doc() = "What machines look like.";
  module.attr("HWLOC") = hwloc_version();
  // Local: isthmus._C, where it is loaded, too, has one for all of Isthmus's errors.
  py::register_local_exception<TopologyError>(module, "TopologyError", PyExc_ValueError);
  py::class_<Machine>(module, "Machine")
      .def_property_readonly("facts", &facts)
      .def_property_readonly("islands", &islands)
      .def("rails", &rails, "ranks_per_node"_a = py::none());
  module.def("nvml", &nvml_facts);
  module.def("read_machine", &read_machine, unlocked, "path"_a);
  module.def(
      "discover", [] { return discover(nvml()); }, unlocked);
}

}  // namespace
}  // namespace isthmus::topology
