#include "near_nic.h"

#include <hwloc.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyDeleter>;
using CpuSet = std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)>;

struct Place {
  std::string name;
  hwloc_obj_t object;  // has cores
};

Topology load_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return nullptr;
  }
  Topology topology(raw);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  return hwloc_topology_load(raw) == 0 ? std::move(topology) : nullptr;
}

// Network devices behind a PCI device; others (lo, bridges) are nowhere.
std::vector<Place> nics(hwloc_topology_t topology) {
  std::vector<Place> places;
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_osdev(topology, device)) != nullptr;) {
    const bool is_nic = device->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK;
    const bool is_pci = device->parent != nullptr && device->parent->type == HWLOC_OBJ_PCI_DEVICE;
    if (is_nic && is_pci) {
      places.push_back({std::string("near ") + device->name, hwloc_get_non_io_ancestor_obj(topology, device)});
    }
  }
  return places;
}

std::vector<Place> numa_nodes(hwloc_topology_t topology) {
  std::vector<Place> places;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    places.push_back({"on NUMA node " + std::to_string(node->os_index), node});
  }
  return places;
}

std::string list_cores(hwloc_const_cpuset_t cores) {
  char* text = nullptr;
  hwloc_bitmap_list_asprintf(&text, cores);
  std::string list = text == nullptr ? "?" : text;
  std::free(text);
  return list;
}

}  // namespace

std::string bind_near_nic(int local_index) {
  const Topology topology = load_topology();
  if (topology == nullptr) {
    return "not bound: hwloc cannot read this machine";
  }
  std::vector<Place> places = nics(topology.get());
  if (places.empty()) {
    places = numa_nodes(topology.get());
  }
  const Place& place = places[static_cast<size_t>(local_index) % places.size()];
  const CpuSet cores(hwloc_bitmap_dup(place.object->cpuset), &hwloc_bitmap_free);
  hwloc_bitmap_and(cores.get(), cores.get(), hwloc_topology_get_allowed_cpuset(topology.get()));
  if (hwloc_set_cpubind(topology.get(), cores.get(), HWLOC_CPUBIND_THREAD) != 0) {
    return "not bound " + place.name + ": " + std::strerror(errno);
  }
  // Memory that is touched from here on comes from there as well.
  hwloc_set_membind(topology.get(), cores.get(), HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_THREAD);
  return place.name + ", cores " + list_cores(cores.get());
}
