// What the readers of hwloc's machines share. Private to this folder.
#pragma once

#include <hwloc.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "topology/machine.h"

namespace isthmus::topology {

using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

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
// Adds the NVLinks that hwloc recorded to a machine's GPUs.
void read_nvlinks(Machine& machine, hwloc_topology_t topology);

// Names a PCI device, or the upper end of a bridge.
std::string bus_id(hwloc_obj_t object);
// "": the object has none of that name.
std::string info(hwloc_obj_t object, const std::string& name);
inline std::string name_of(hwloc_obj_t object) { return object->name == nullptr ? "" : object->name; }

// The NICs of a machine while it is read.
class Adapters {
 public:
  Adapters(const Sysfs& sysfs, Machine& machine) : sysfs_(sysfs), machine_(machine) {}

  // Adds the ports of a PCI function to the machine.
  void add(hwloc_obj_t function);
  // Adds an interface that is on no PCIe bus, once all others are there.
  void add_loose(hwloc_obj_t interface);
  // Numbers them: verbs devices first, then interfaces, each by name. Virtual functions whose physical function is
  // there go.
  void number();

 private:
  void add(const std::string& name, const std::string& bus_id, const std::string& kind,
           std::optional<double> speed_gbit_s);
  void add_verbs(hwloc_obj_t device, hwloc_obj_t function);
  void add_interface(hwloc_obj_t device, hwloc_obj_t function);
  std::string reason_against(const std::string& interface) const;

  const Sysfs& sysfs_;
  Machine& machine_;
  std::set<int> verbs_ports_, taken_;  // of the function that is read: seen as verbs devices, as interfaces
  std::string left_out_;
};

}  // namespace isthmus::topology
