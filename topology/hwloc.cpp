// The machine that runs, and what hwloc says of any.
#include "topology/hwloc.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "topology/discover.h"
#include "topology/pcie.h"

namespace isthmus::topology {
namespace {

class Reader {
 public:
  Reader(hwloc_topology_t topology, const Sysfs& sysfs)
      : topology_(topology), sysfs_(sysfs), adapters_(sysfs, machine_) {}

  Machine machine() {
    read_processors();
    walk(hwloc_get_root_obj(topology_));
    for (const hwloc_obj_t device : loose_) {
      adapters_.add_loose(device);
    }
    adapters_.number();
    for (PcieNode& bridge : machine_.pcie) {
      bridge.numa_node = machine_.numa_nodes.size() == 1 ? machine_.numa_nodes[0].index : bridge.numa_node;
    }
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
    const auto by_index = [](const auto& a, const auto& b) { return a.index < b.index; };
    std::sort(machine_.sockets.begin(), machine_.sockets.end(), by_index);
    std::sort(machine_.numa_nodes.begin(), machine_.numa_nodes.end(), by_index);
  }

  void walk(hwloc_obj_t object) {
    for (hwloc_obj_t io = object->io_first_child; io != nullptr; io = io->next_sibling) {
      read_root(io, object);
    }
    for (hwloc_obj_t child = object->first_child; child != nullptr; child = child->next_sibling) {
      walk(child);
    }
  }

  // A host bridge; devices right below a processor where bridges were left out; an interface that is on no PCIe bus.
  void read_root(hwloc_obj_t io, hwloc_obj_t above) {
    if (io->type == HWLOC_OBJ_OS_DEVICE) {
      loose_.push_back(io);
      return;
    }
    PcieNode root{"host bridge", "", {}, {}, {}, {}};
    if (above->nodeset != nullptr && hwloc_bitmap_weight(above->nodeset) == 1) {
      root.numa_node = hwloc_bitmap_first(above->nodeset);
    }
    if (io->type == HWLOC_OBJ_BRIDGE && io->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST) {
      for (hwloc_obj_t child = io->io_first_child; child != nullptr; child = child->next_sibling) {
        read_pci(child, root, 0, "");
      }
    } else {
      machine_.note("host bridges are left out: PCIe distances are those of NUMA nodes");
      read_pci(io, root, 0, "");
    }
    // The port of the processor that a device or a switch is plugged into is no place, unless several hang from it.
    for (PcieNode& port : root.children) {
      if (port.kind == "switch" && port.children.size() == 1) {
        PcieNode only = std::move(port.children[0]);
        port = std::move(only);
      }
    }
    if (!root.children.empty()) {
      machine_.pcie.push_back(std::move(root));
    }
  }

  // num_above: bridges above, of which the first is a port of the processor. A switch is a bridge towards the root,
  // with a bridge towards each device below it: one place. port: the bus id of the other end of the link towards the
  // root.
  void read_pci(hwloc_obj_t object, PcieNode& parent, int num_above, const std::string& port) {
    if (object->type != HWLOC_OBJ_BRIDGE && object->type != HWLOC_OBJ_PCI_DEVICE) {
      return;
    }
    require(num_above < 2 * kMostPcieLevels, 0, "PCIe devices nest more than ", kMostPcieLevels, " deep");
    const PciAttributes& pci =
        object->type == HWLOC_OBJ_BRIDGE ? object->attr->bridge.upstream.pci : object->attr->pcidev;
    PcieNode place{"switch", bus_id(pci), {}, link_speed(pci, port), {}, {}};
    if (object->type == HWLOC_OBJ_PCI_DEVICE) {
      read_device(object, std::move(place), parent);
      return;
    }
    const bool is_place = num_above == 0 || num_above % 2 == 1;
    for (hwloc_obj_t child = object->io_first_child; child != nullptr; child = child->next_sibling) {
      read_pci(child, is_place ? place : parent, num_above + 1, place.bus_id);
    }
    if (is_place && !place.children.empty()) {
      parent.children.push_back(std::move(place));
    }
  }

  // The best of both ends: an idle GPU slows its link down. hwloc says what it was at that moment, in GB/s after
  // encoding.
  std::optional<double> link_speed(const PciAttributes& pci, const std::string& port) const {
    if (!sysfs_.exists()) {
      const double gbit_s = std::round(static_cast<double>(pci.linkspeed) * 8000) / 1000;
      return gbit_s > 0 && gbit_s <= kMostGbitS ? std::optional(gbit_s) : std::nullopt;
    }
    const auto end = [&](const std::string& of) {
      const std::string folder = "/bus/pci/devices/" + of + "/max_link_";
      return of.empty() ? LinkEnd{} : LinkEnd{sysfs_.line(folder + "speed"), sysfs_.line(folder + "width")};
    };
    return pcie_gbit_s(end(bus_id(pci)), end(port));
  }

  void read_device(hwloc_obj_t object, PcieNode place, PcieNode& parent) {
    const int class_code = object->attr->pcidev.class_id, vendor = object->attr->pcidev.vendor_id;
    if (is_gpu(class_code, vendor == 0 ? -1 : vendor)) {
      place.kind = "gpu";
      place.devices = {static_cast<int>(machine_.gpus.size())};
      machine_.gpus.push_back(gpu(object));
    } else if (is_nic(class_code) || object->io_arity > 0) {
      place.kind = "nic";
      adapters_.add(object, place);
      for (PcieNode& other : parent.children) {  // the functions of one adapter share a place
        if (other.kind == "nic" && other.bus_id.substr(0, 10) == place.bus_id.substr(0, 10)) {
          other.devices.insert(other.devices.end(), place.devices.begin(), place.devices.end());
          return;
        }
      }
    } else if (class_code >> 8 == 0x12 || class_code == 0x0302 || class_code == 0x0380) {
      machine_.note("left out: the accelerator at " + place.bus_id + ", as GPUs of NVIDIA and AMD alone are known");
    }
    if (!place.devices.empty()) {
      parent.children.push_back(std::move(place));
    }
  }

  static Gpu gpu(hwloc_obj_t object) {
    Gpu found;
    found.bus_id = bus_id(object->attr->pcidev);
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

  hwloc_topology_t topology_;
  const Sysfs& sysfs_;
  Machine machine_;
  Adapters adapters_;
  std::vector<hwloc_obj_t> loose_;
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
  std::vector<Gpu> told = nvml.gpus;
  std::string hidden, lost;
  for (Gpu& gpu : machine.gpus) {
    const auto found = std::find_if(told.begin(), told.end(), [&](const Gpu& one) { return one.bus_id == gpu.bus_id; });
    if (found == told.end()) {
      gpu.index = kLeftOut;
      hidden += (hidden.empty() ? "" : ", ") + gpu.bus_id;
    } else {
      gpu = *found;
      told.erase(found);
    }
  }
  for (const Gpu& gpu : told) {
    machine.gpus.push_back(gpu);
    lost += (lost.empty() ? "GPU" : ", GPU") + std::to_string(gpu.index);
  }
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

std::string bus_id(const PciAttributes& pci) {
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
  Machine machine = read_objects(topology.get(), Sysfs(is_here ? sys : ""));
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
