// What the readers of machines share. Private to this folder.
#pragma once

#include <hwloc.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "topology/machine.h"

namespace isthmus::topology {

using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)>;

// Attributes of devices as Linux shows them under /sys. Any may be missing, unreadable or nonsense.
struct Sysfs {
  std::string root;  // "" for a recorded machine, which has none: nothing is read

  bool exists() const { return !root.empty(); }
  bool has(const std::string& path) const { return exists() && std::filesystem::exists(root + path); }
  // One line, printable; "": missing or unreadable, as an interface's speed is while it is down.
  std::string line(const std::string& path) const;
};

// To be loaded, with the devices that matter.
Topology new_topology();
// Processors, the PCIe tree, GPUs and NICs of a loaded topology, which finish() has not seen.
Machine read_objects(hwloc_topology_t topology, const Sysfs& sysfs);
// Adds the fast links that hwloc recorded to a machine's GPUs.
void read_fast_links(Machine& machine, hwloc_topology_t topology);

// A set of numbers, from a mask such as "0x0000000f" or "ff,ffff0000"; empty for what is none.
Bitmap set_of_mask(const std::string& mask);
// "0-3,8".
std::string numbers_of(hwloc_const_bitmap_t set);
// Names a PCI device, or the upper end of a bridge.
std::string bus_id(hwloc_obj_t object);
// "": the object has none of that name.
std::string info(hwloc_obj_t object, const std::string& name);
inline std::string name_of(hwloc_obj_t object) { return object->name == nullptr ? "" : object->name; }

// A PCI device that may be a NIC, and its place in the machine's tree.
struct Function {
  hwloc_obj_t object;
  int place;
};

// Adds NICs: ports of PCI functions, and interfaces that are on no PCIe bus.
void read_nics(Machine& machine, const Sysfs& sysfs, const std::vector<Function>& functions,
               const std::vector<std::string>& loose);

// PCIe's numbers. vendor, device, class_code (16 bits, such as 0x0302): -1 where unknown.
inline constexpr int kNvidia = 0x10DE;

// One end of a PCIe link: speed and width, as sysfs and NCCL have them: "16.0 GT/s PCIe", "8 GT/s"; "16".
struct LinkEnd {
  std::string speed, width;
};

// The speed of a link in one direction, which both ends support; if one end's is unknown, the other's. Whatever is no
// number of a link, as "Unknown" and 255 lanes, is unknown.
std::optional<double> pcie_gbit_s(const LinkEnd& one, const LinkEnd& other = {});

// Whether a device computes. Consoles of a server's board do not.
bool is_gpu(int class_code, int vendor, int device);
// The name of a GPU by its PCI ids; "": unknown.
std::string gpu_model(int vendor, int device);
// Whether a GPU shares its package with its processor, so that its PCIe link is a stub.
bool has_c2c(int vendor, int device);
inline bool is_nic(int class_code) { return class_code >> 8 == 0x02; }
// The protocol of a NIC, from its class, its maker, and the name of its device.
std::string nic_kind(int class_code, int vendor, const std::string& name, bool speaks_verbs);
// Whether software makes interfaces of that name: they lead to this host, or through another interface.
bool is_made_by_software(const std::string& interface);

}  // namespace isthmus::topology
