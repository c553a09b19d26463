// The machine that runs, and what hwloc says of any.
#include "topology/hwloc.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "topology/discover.h"
#include "topology/pcie.h"

namespace isthmus::topology {
namespace {

// Host bridges stand on top; below another bridge there is none, whatever a damaged file says.
bool is_pci_bridge(hwloc_obj_t object) {
  return object->type == HWLOC_OBJ_BRIDGE &&
         (object->attr->bridge.upstream_type != HWLOC_OBJ_BRIDGE_HOST || object->parent->type == HWLOC_OBJ_BRIDGE);
}

Gpu gpu(hwloc_obj_t object) {
  Gpu found;
  found.bus_id = bus_id(object);
  found.model = gpu_model(object->attr->pcidev.vendor_id, object->attr->pcidev.device_id);
  found.model = found.model.empty() ? printable(info(object, "PCIDevice")) : found.model;
  for (hwloc_obj_t device = object->io_first_child; device != nullptr; device = device->next_sibling) {
    const std::string name = name_of(device), model = printable(info(device, "GPUModel"));
    found.model = model.empty() ? found.model : model;
    for (const std::string kind : {"nvml", "cuda", "rsmi"}) {
      const bool is_numbered = name.starts_with(kind) && name.size() > 4 && name.size() < 10 &&
                               name.find_first_not_of("0123456789", 4) == std::string::npos;
      if (is_numbered && (kind == "nvml" || found.index == -1)) {
        found.index = std::stoi(name.substr(4));
      }
    }
  }
  return found;
}

class Reader {
 public:
  Reader(hwloc_topology_t topology, const Sysfs& sysfs)
      : topology_(topology), sysfs_(sysfs), adapters_(sysfs, machine_) {}

  Machine machine() {
    read_processors();
    for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_pcidev(topology_, object)) != nullptr;) {
      read_device(object);
    }
    for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_osdev(topology_, object)) != nullptr;) {
      if (hwloc_obj_type_is_io(object->parent->type) == 0) {
        adapters_.add_loose(object);
      }
    }
    adapters_.number();
    fold_ports();
    return std::move(machine_);
  }

 private:
  void read_processors() {
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_obj_by_type(topology_, HWLOC_OBJ_PACKAGE, object)) != nullptr) {
      machine_.sockets.push_back({static_cast<int>(object->os_index), printable(info(object, "CPUModel"))});
    }
    while ((object = hwloc_get_next_obj_by_type(topology_, HWLOC_OBJ_NUMANODE, object)) != nullptr) {
      const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology_, HWLOC_OBJ_PACKAGE, object);
      char* cpus = nullptr;
      hwloc_bitmap_list_asprintf(&cpus, object->cpuset);
      machine_.numa_nodes.push_back({static_cast<int>(object->os_index), {}, cpus == nullptr ? "" : cpus});
      std::free(cpus);
      if (package != nullptr) {
        machine_.numa_nodes.back().socket = static_cast<int>(package->os_index);
      }
    }
    require(machine_.numa_nodes.size() <= kMostNumaNodes, 0, "has ", machine_.numa_nodes.size(), " NUMA nodes");
  }

  void read_device(hwloc_obj_t object) {
    const int class_code = object->attr->pcidev.class_id, vendor = object->attr->pcidev.vendor_id;
    if (is_gpu(class_code, vendor == 0 ? -1 : vendor)) {
      machine_.gpus.push_back(gpu(object));
      machine_.gpus.back().place = machine_.add({"gpu", bus_id(object), above(object), link_speed(object), {}});
    } else if (is_nic(class_code) || object->io_arity > 0) {
      const size_t first = machine_.nics.size();
      adapters_.add(object);
      const int place = first < machine_.nics.size() ? adapter(object) : -1;
      std::for_each(machine_.nics.begin() + static_cast<long>(first), machine_.nics.end(),
                    [&](Nic& nic) { nic.place = place; });
    } else if (class_code >> 8 == 0x12 || class_code == 0x0302 || class_code == 0x0380) {
      machine_.note("left out: the accelerator at " + bus_id(object) + ", as GPUs of NVIDIA and AMD alone are known");
    }
  }

  // The place of an adapter, which its functions share.
  int adapter(hwloc_obj_t function) {
    const int parent = above(function);
    const std::string id = bus_id(function);
    for (size_t place = 0; place < machine_.pcie.size(); ++place) {
      const Place& other = machine_.pcie[place];
      if (other.above == parent && other.kind == "nic" && other.bus_id.substr(0, 10) == id.substr(0, 10)) {
        return static_cast<int>(place);
      }
    }
    return machine_.add({"nic", id, parent, link_speed(function), {}});
  }

  // The place that a device or a bridge hangs from, which is made when it is first asked for. The first bridge below a
  // host bridge is a port of the processor. A switch is a bridge towards the root, with a bridge towards each device
  // below it: one place.
  int above(hwloc_obj_t object) {
    const hwloc_obj_t bridge = object->parent;
    if (const auto known = place_of_.find(bridge); known != place_of_.end()) {
      return known->second;
    }
    if (!is_pci_bridge(bridge)) {
      return host_bridge(bridge);
    }
    const int parent = above(bridge), level = level_of_[bridge] = level_of_[bridge->parent] + 1;
    const bool is_place = level == 1 || level % 2 == 0;
    return place_of_[bridge] =
               is_place ? machine_.add({"switch", bus_id(bridge), parent, link_speed(bridge), {}}) : parent;
  }

  // object: the bridge, or what is right above a device where bridges were left out.
  int host_bridge(hwloc_obj_t object) {
    const bool is_bridge = object->type == HWLOC_OBJ_BRIDGE;
    require(is_bridge || hwloc_obj_type_is_io(object->type) == 0, 0, "has a PCI device below another one");
    const hwloc_obj_t processors = hwloc_get_non_io_ancestor_obj(topology_, object);
    Place root{"host bridge", "", -1, {}, {}};
    if (machine_.numa_nodes.size() == 1) {
      root.numa_node = machine_.numa_nodes[0].index;
    } else if (processors->nodeset != nullptr && hwloc_bitmap_weight(processors->nodeset) == 1) {
      root.numa_node = hwloc_bitmap_first(processors->nodeset);
    }
    const int place = machine_.add(root);
    if (is_bridge) {
      place_of_[object] = place;
    } else {
      machine_.note("host bridges are left out: PCIe distances are those of NUMA nodes");
    }
    return place;
  }

  // The port of the processor that a device or a switch is plugged into is no place, unless several hang from it.
  void fold_ports() {
    std::map<int, int> num_below;
    for (const Place& place : machine_.pcie) {
      ++num_below[place.above];
    }
    for (auto place = machine_.pcie.rbegin(); place != machine_.pcie.rend(); ++place) {  // from below
      const Place port = place->above == -1 ? *place : machine_.pcie[place->above];
      if (port.kind == "switch" && machine_.pcie[port.above].above == -1 && num_below[place->above] == 1) {
        place->above = port.above;
      }
    }
  }

  // The best of both ends: an idle GPU slows its link down. hwloc says what it was at that moment, in GB/s after
  // encoding.
  std::optional<double> link_speed(hwloc_obj_t object) const {
    if (!sysfs_.exists()) {
      const double gbit_s = std::round(static_cast<double>(object->attr->pcidev.linkspeed) * 8000) / 1000;
      return gbit_s > 0 && gbit_s <= kMostGbitS ? std::optional(gbit_s) : std::nullopt;
    }
    const auto end = [&](hwloc_obj_t of) {
      const std::string folder = "/bus/pci/devices/" + bus_id(of) + "/max_link_";
      return LinkEnd{sysfs_.line(folder + "speed"), sysfs_.line(folder + "width")};
    };
    return pcie_gbit_s(end(object), is_pci_bridge(object->parent) ? end(object->parent) : LinkEnd{});
  }

  hwloc_topology_t topology_;
  const Sysfs& sysfs_;
  Machine machine_;
  Adapters adapters_;
  std::map<hwloc_obj_t, int> place_of_, level_of_;  // of bridges
};

// NVML decides which GPUs there are: a container may see fewer than the bus has.
void take_gpus(Machine& machine, const NvmlFacts& nvml) {
  if (!nvml.missing.empty()) {
    machine.note(nvml.missing);
    if (!machine.gpus.empty()) {
      machine.note("without NVML, NVLinks are unknown, and GPUs are those of the bus");
    }
    return;
  }
  for (const std::string& note : nvml.notes) {
    machine.note(note);
  }
  std::vector<Gpu> gpus = nvml.gpus;
  std::string hidden, lost;
  for (const Gpu& seen : machine.gpus) {
    const auto told = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& one) { return one.bus_id == seen.bus_id; });
    if (told == gpus.end()) {
      hidden += (hidden.empty() ? "" : ", ") + seen.bus_id;
    } else {
      told->place = seen.place;
    }
  }
  for (const Gpu& gpu : gpus) {
    if (gpu.place == -1) {
      lost += (lost.empty() ? "GPU" : ", GPU") + std::to_string(gpu.index);
    }
  }
  machine.gpus = std::move(gpus);
  if (!hidden.empty()) {
    machine.note("NVML does not show " + hidden + ": left out");
  }
  if (!lost.empty()) {
    machine.note("not on the PCIe bus that sysfs shows: " + lost);
  }
}

}  // namespace

Topology new_topology() {
  hwloc_topology_t raw = nullptr;
  require(hwloc_topology_init(&raw) == 0, 0, "hwloc cannot start");
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_OS_DEVICE,
                                 HWLOC_TYPE_FILTER_KEEP_IMPORTANT);  // nothing made by software
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  // Plugins that would start a driver's runtime in a job; NVML is asked for what they know.
  for (const char* plugin : {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"}) {
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugin);
  }
  return {raw, &hwloc_topology_destroy};
}

Machine read_objects(hwloc_topology_t topology, const Sysfs& sysfs) { return Reader(topology, sysfs).machine(); }

std::string bus_id(hwloc_obj_t object) {
  const auto& pci = object->type == HWLOC_OBJ_BRIDGE ? object->attr->bridge.upstream.pci : object->attr->pcidev;
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", static_cast<unsigned>(pci.domain), pci.bus, pci.dev, pci.func);
  return text;
}

std::string info(hwloc_obj_t object, const std::string& name) {
  const char* value = hwloc_obj_get_info_by_name(object, name.c_str());
  return value == nullptr ? "" : value;
}

Machine discover(const NvmlFacts& nvml, const std::string& sys) {
  const Topology topology = new_topology();
  require(hwloc_topology_load(topology.get()) == 0, 0, "hwloc cannot read this machine");
  const bool is_here = hwloc_topology_is_thissystem(topology.get()) != 0;
  Machine machine = read_objects(topology.get(), {is_here ? sys : ""});
  if (is_here) {
    take_gpus(machine, nvml);
  } else {
    read_nvlinks(machine, topology.get());
  }
  if (is_here && hwloc_get_next_pcidev(topology.get(), nullptr) == nullptr) {
    machine.note("sysfs shows no PCIe bus: distances are those between NUMA nodes");
  }
  machine.source = "discovery";
  machine.name = printable(info(hwloc_get_root_obj(topology.get()), "HostName"));
  machine.name = machine.name.empty() ? "this machine" : machine.name;
  finish(machine);
  return machine;
}

std::string hwloc_version() {
  const unsigned version = hwloc_get_api_version();
  return std::to_string(version >> 16) + "." + std::to_string(version >> 8 & 0xFF);
}

}  // namespace isthmus::topology
