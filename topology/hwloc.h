// What the readers of hwloc's machines share. Private to this folder.
#pragma once

#include <hwloc.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "topology/machine.h"

namespace isthmus::topology {

using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;
using PciAttributes = hwloc_obj_attr_u::hwloc_pcidev_attr_s;

// Attributes of devices as Linux shows them under /sys. Any may be missing, unreadable or nonsense.
class Sysfs {
 public:
  // root: "" for a recorded machine, which has none: nothing is read.
  explicit Sysfs(std::string root) : root_(std::move(root)) {}

  bool exists() const { return !root_.empty(); }
  // One line, printable; "": missing or unreadable, as an interface's speed is while it is down.
  std::string line(const std::string& path) const;
  // What is in a folder, sorted.
  std::vector<std::string> names(const std::string& folder) const;
  // The last part of where a symbolic link leads; "": it is none.
  std::string target(const std::string& path) const;

 private:
  std::string root_;
};

// To be loaded, with the devices that matter.
Topology new_topology();
// Processors, the PCIe tree, GPUs and NICs of a loaded topology, which finish() has not seen.
Machine read_objects(hwloc_topology_t topology, const Sysfs& sysfs);

// Adds the NVLinks that hwloc recorded to a machine's GPUs.
void read_nvlinks(Machine& machine, hwloc_topology_t topology);

std::string bus_id(const PciAttributes& pci);
// "": the object has none of that name.
std::string info(hwloc_obj_t object, const std::string& name);
inline std::string name_of(hwloc_obj_t object) { return object->name == nullptr ? "" : object->name; }

// The NICs of a machine while it is read.
class Adapters {
 public:
  Adapters(const Sysfs& sysfs, Machine& machine) : sysfs_(sysfs), machine_(machine) {}

  // Adds the ports of a PCI function to the machine, and to its place in the tree.
  void add(hwloc_obj_t function, PcieNode& place);
  // Adds an interface that is on no PCIe bus, once all others are there.
  void add_loose(hwloc_obj_t device);
  // Numbers them: verbs devices first, then interfaces, each by name. Virtual functions whose physical function is
  // there go.
  void number();

 private:
  void add(const std::string& name, const std::string& bus_id, const std::string& kind,
           std::optional<double> speed_gbit_s);
  void add_verbs(hwloc_obj_t device, const PciAttributes& pci);
  void add_interface(hwloc_obj_t device, const PciAttributes& pci);
  std::vector<int> ports(hwloc_obj_t device) const;
  std::string reason_against(const std::string& interface) const;

  const Sysfs& sysfs_;
  Machine& machine_;
  std::set<int> verbs_ports_, taken_;  // of the function that is read: seen as verbs devices, as interfaces
  std::string left_out_;
};

}  // namespace isthmus::topology
