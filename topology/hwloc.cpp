// The machine that runs, and what hwloc says of any.
#include "topology/hwloc.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <regex>

#include "topology/read.h"

namespace isthmus::topology {
namespace {

Gpu gpu(hwloc_obj_t object) {
  static const std::regex kNumbered("(nvml|cuda|rsmi|ze)([0-9]{1,5})");
  Gpu found;
  found.bus_id = bus_id(object);
  found.model = gpu_model(object->attr->pcidev.vendor_id, object->attr->pcidev.device_id);
  found.model = found.model.empty() ? printable(info(object, "PCIDevice")) : found.model;
  for (hwloc_obj_t device = object->io_first_child; device != nullptr; device = device->next_sibling) {
    const std::string name = name_of(device), model = printable(info(device, "GPUModel"));
    found.model = model.empty() ? found.model : model;
    std::smatch match;
    if (std::regex_match(name, match, kNumbered) && (match[1] == "nvml" || found.index == -1)) {
      found.index = std::stoi(match[2]);
    }
  }
  return found;
}

class Reader {
 public:
  Reader(hwloc_topology_t topology, const Sysfs& sysfs) : topology_(topology), sysfs_(sysfs) {}

  Machine machine() {
    read_processors();
    read_below(hwloc_get_root_obj(topology_), -1, 0);
    std::vector<std::string> loose;
    for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_osdev(topology_, object)) != nullptr;) {
      const bool is_loose = hwloc_obj_type_is_io(object->parent->type) == 0;
      // What a file has beside PCIe was made by software, as far as anyone can tell.
      if (sysfs_.exists() && is_loose && object->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK) {
        loose.push_back(name_of(object));
      }
    }
    read_nics(machine_, sysfs_, functions_, loose);
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
      machine_.numa_nodes.push_back({static_cast<int>(object->os_index), {}, numbers_of(object->cpuset)});
      if (package != nullptr) {
        machine_.numa_nodes.back().socket = static_cast<int>(package->os_index);
      }
    }
    require(machine_.numa_nodes.size() <= kMostNumaNodes, 0, "has ", machine_.numa_nodes.size(), " NUMA nodes");
  }

  // Everything that hangs from an object. above: the place that it is; -1: none. level: bridges from the host bridge.
  void read_below(hwloc_obj_t object, int above, int level) {
    for (hwloc_obj_t child = object->first_child; child != nullptr; child = child->next_sibling) {
      read_below(child, -1, 0);
    }
    for (hwloc_obj_t child = object->io_first_child; child != nullptr; child = child->next_sibling) {
      if (child->type == HWLOC_OBJ_OS_DEVICE) {
        continue;
      }
      const bool is_bridge = child->type == HWLOC_OBJ_BRIDGE;
      if (above != -1) {
        is_bridge ? read_bridge(child, above, level + 1) : read_device(child, above);
        continue;
      }
      const bool is_host_bridge = is_bridge && child->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST;
      require(is_host_bridge, 0, "names no host bridges: lstopo --filter bridge:none leaves them out");
      read_below(child, add_host_bridge(object), 0);
    }
  }

  // processors: those that it is attached to.
  int add_host_bridge(hwloc_obj_t processors) {
    PcieNode root{"host bridge", "", -1, {}, {}};
    if (machine_.numa_nodes.size() == 1) {
      root.numa_node = machine_.numa_nodes[0].index;
    } else if (processors->nodeset != nullptr) {
      // Of a package's nodes the first: others are memory of another kind, or parts of the package that no file tells.
      std::vector<int> nodes;
      for (const NumaNode& node : machine_.numa_nodes) {
        if (!node.cpus.empty() && hwloc_bitmap_isset(processors->nodeset, static_cast<unsigned>(node.index)) != 0) {
          nodes.push_back(node.index);
        }
      }
      const bool is_in_package = machine_.sockets.size() == 1 || processors->type == HWLOC_OBJ_PACKAGE ||
                                 hwloc_get_ancestor_obj_by_type(topology_, HWLOC_OBJ_PACKAGE, processors) != nullptr;
      if (nodes.size() == 1 || (!nodes.empty() && is_in_package)) {
        root.numa_node = nodes[0];
      }
      if (root.numa_node && nodes.size() > 1) {
        machine_.note("devices beside NUMA nodes of one package are taken to be in the first, node " +
                      std::to_string(nodes[0]));
      }
    }
    return machine_.add(root);
  }

  // The first bridge below a host bridge is a port of the processor. A switch is a bridge towards the root, with a
  // bridge towards each device below it: one place.
  void read_bridge(hwloc_obj_t bridge, int above, int level) {
    if (level != 1 && level % 2 != 0) {
      return read_below(bridge, above, level);
    }
    const int place = machine_.add({"switch", bus_id(bridge), above, link_speed(bridge), {}});
    read_below(bridge, place, level);
    const auto first = std::ranges::find(machine_.pcie, place, &PcieNode::above);
    if (first == machine_.pcie.end()) {
      machine_.pcie.resize(place);
    } else if (level == 1 && std::ranges::count(machine_.pcie, place, &PcieNode::above) == 1) {
      first->above = above;  // what alone is plugged into a port
    }
  }

  void read_device(hwloc_obj_t object, int above) {
    for (hwloc_obj_t child = object->io_first_child; child != nullptr; child = child->next_sibling) {
      require(child->type == HWLOC_OBJ_OS_DEVICE, 0, "has a PCI device below another one");
    }
    const int class_code = object->attr->pcidev.class_id, vendor = object->attr->pcidev.vendor_id;
    const int device = object->attr->pcidev.device_id;
    if (is_gpu(class_code, vendor == 0 ? -1 : vendor, device)) {
      const std::optional<double> speed = has_c2c(vendor, device) ? std::nullopt : link_speed(object);
      machine_.gpus.push_back(gpu(object));
      machine_.gpus.back().place = machine_.add({"gpu", bus_id(object), above, speed, {}});
    } else if (is_nic(class_code) || object->io_arity > 0) {
      functions_.push_back({object, adapter(object, above)});
    } else if (class_code >> 8 == 0x12 || class_code == 0x0302 || class_code == 0x0380) {
      machine_.note("left out: the accelerator at " + bus_id(object) +
                    ", as GPUs of NVIDIA, AMD and Intel alone are known");
    }
  }

  // The place of an adapter, which its functions share.
  int adapter(hwloc_obj_t function, int above) {
    const std::string id = bus_id(function);
    const auto place = std::ranges::find_if(machine_.pcie, [&](const PcieNode& other) {
      return other.above == above && other.kind == "nic" && other.bus_id.substr(0, 10) == id.substr(0, 10);
    });
    return place != machine_.pcie.end() ? static_cast<int>(place - machine_.pcie.begin())
                                        : machine_.add({"nic", id, above, link_speed(function), {}});
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
    const hwloc_obj_t port = object->parent;
    const bool has_port = port->type == HWLOC_OBJ_BRIDGE && port->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI;
    return pcie_gbit_s(end(object), has_port ? end(port) : LinkEnd{});
  }

  hwloc_topology_t topology_;
  const Sysfs& sysfs_;
  Machine machine_;
  std::vector<Function> functions_;
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
    const auto told = std::ranges::find(gpus, seen.bus_id, &Gpu::bus_id);
    if (told == gpus.end()) {
      hidden += ", " + seen.bus_id;
    } else {
      told->place = seen.place;
    }
  }
  for (const Gpu& gpu : gpus) {
    lost += gpu.place == -1 ? ", GPU" + std::to_string(gpu.index) : "";
  }
  machine.gpus = std::move(gpus);
  if (!hidden.empty()) {
    machine.note("NVML does not show " + hidden.substr(2) + ": left out");
  }
  if (!lost.empty()) {
    machine.note("not on the PCIe bus that sysfs shows: " + lost.substr(2));
  }
}

}  // namespace

std::string Sysfs::line(const std::string& path) const {
  std::string text;
  if (exists()) {
    std::ifstream file(root + path);
    std::getline(file, text);
  }
  return printable(text);
}

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

Bitmap set_of_mask(const std::string& mask) {
  constexpr size_t kMostOfMask = 4096;
  Bitmap set(hwloc_bitmap_alloc(), &hwloc_bitmap_free);
  if (mask.empty() || mask.size() > kMostOfMask || mask.find_first_not_of("0123456789abcdefABCDEFx,") != mask.npos ||
      hwloc_bitmap_sscanf(set.get(), mask.c_str()) != 0) {
    hwloc_bitmap_zero(set.get());
  }
  return set;
}

std::string numbers_of(hwloc_const_bitmap_t set) {
  char* text = nullptr;
  hwloc_bitmap_list_asprintf(&text, set);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  return text == nullptr ? "" : text;
}

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
    read_fast_links(machine, topology.get());
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
