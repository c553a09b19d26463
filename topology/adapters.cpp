// NICs: which ports there are, under which name, and what is none; and sysfs, which says it.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <tuple>

#include "topology/hwloc.h"
#include "topology/pcie.h"

namespace isthmus::topology {
namespace {

// The end of a virtual function's wire in the adapter's own switch: pf0vf1, c1pf0sf2.
bool is_representor(const std::string& port_name) {
  return port_name.find("pf") < 4 && port_name.find_first_of("vs") != std::string::npos &&
         port_name.find('f', 3) != std::string::npos;
}

// The speed of a port in what a driver says, "200 Gb/sec (4X HDR)" or Mbit/s.
std::optional<double> port_gbit_s(const std::string& text, double divisor) {
  char* end = nullptr;
  const double speed = std::strtod(text.c_str(), &end) / divisor;
  return end != text.c_str() && speed > 0 && speed <= kMostGbitS ? std::optional(speed) : std::nullopt;
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

void Adapters::add(hwloc_obj_t function) {
  const auto& pci = function->attr->pcidev;
  verbs_ports_.clear();
  taken_.clear();
  bool is_named = false;
  for (const auto type : {HWLOC_OBJ_OSDEV_OPENFABRICS, HWLOC_OBJ_OSDEV_NETWORK}) {
    for (hwloc_obj_t device = function->io_first_child; device != nullptr; device = device->next_sibling) {
      if (device->type == HWLOC_OBJ_OS_DEVICE && device->attr->osdev.type == type) {
        type == HWLOC_OBJ_OSDEV_NETWORK ? add_interface(device, function) : add_verbs(device, function);
        is_named = true;
      }
    }
  }
  if (!sysfs_.exists() && !is_named) {
    add("", bus_id(function), nic_kind(pci.class_id, pci.vendor_id, "", pci.class_id == 0x0207), {});
  }
}

void Adapters::add(const std::string& name, const std::string& bus_id, const std::string& kind,
                   std::optional<double> speed_gbit_s) {
  Nic& nic = machine_.nics.emplace_back();
  nic.bus_id = bus_id;
  nic.name = printable(name);
  nic.kind = kind;
  nic.speed_gbit_s = speed_gbit_s;
}

void Adapters::add_verbs(hwloc_obj_t device, hwloc_obj_t function) {
  const std::string name = name_of(device), folder = "/class/infiniband/" + name;
  const auto has = [&](const std::string& port) {
    return sysfs_.has(folder + "/ports/" + port) || !info(device, "Port" + port + "State").empty();
  };
  for (int port = 1; port == 1 || (port < 256 && has(std::to_string(port))); ++port) {
    verbs_ports_.insert(port);
    const std::string number = std::to_string(port), own = isthmus::detail::concatenate(folder, "/ports/", number, "/");
    const std::string shown = printable(port == 1 ? name : isthmus::detail::concatenate(name, ":", number));
    const std::string state = sysfs_.exists() ? sysfs_.line(own + "state") : info(device, "Port" + number + "State");
    if (!state.empty() && state[0] != '4') {  // 4: ACTIVE
      left_out_ += ", " + shown + " (down)";
      continue;
    }
    const std::string layer = sysfs_.line(own + "link_layer");
    const bool is_iwarp = sysfs_.line(folder + "/node_type").starts_with('4');
    std::string kind = nic_kind(function->attr->pcidev.class_id, function->attr->pcidev.vendor_id, name, true);
    if (kind != "efa" && !layer.empty()) {
      kind = layer == "InfiniBand" ? "infiniband" : layer != "Ethernet" ? "unknown" : is_iwarp ? "ethernet" : "roce";
    }
    add(shown, bus_id(function), kind, port_gbit_s(sysfs_.line(own + "rate"), 1));
  }
}

// A port may be seen twice, as a verbs device (mlx5_0) and as an interface (ens1np0): it is one NIC under the verbs
// device's name: the only one of its function, or that with this number.
void Adapters::add_interface(hwloc_obj_t device, hwloc_obj_t function) {
  const std::string name = name_of(device), folder = "/class/net/" + name;
  const std::string number = sysfs_.line(folder + "/dev_port"), type = sysfs_.line(folder + "/type");
  const int port = number.size() > 4 ? 0 : static_cast<int>(std::strtol(number.c_str(), nullptr, 10));
  const bool is_seen =
      verbs_ports_ == std::set{1} || verbs_ports_.count(port + 1) != 0 || (!sysfs_.exists() && !verbs_ports_.empty());
  if (is_seen || is_representor(sysfs_.line(folder + "/phys_port_name"))) {
    return;
  }
  std::string reason = reason_against(name);
  reason = reason.empty() && taken_.count(port) != 0 ? "the same port as another interface" : reason;
  if (!reason.empty()) {
    left_out_ += ", " + printable(name) + " (" + reason + ")";
    return;
  }
  taken_.insert(port);
  const auto& pci = function->attr->pcidev;
  const std::string kind = type == "1"    ? "ethernet"
                           : type == "32" ? "infiniband"
                                          : nic_kind(pci.class_id, pci.vendor_id, name, false);
  add(name, bus_id(function), kind, port_gbit_s(sysfs_.line(folder + "/speed"), 1000));
}

std::string Adapters::reason_against(const std::string& interface) const {
  const std::string folder = "/class/net/" + interface, state = sysfs_.line(folder + "/operstate"),
                    type = sysfs_.line(folder + "/type");
  if (!type.empty() && type != "1" && type != "32") {
    return "neither Ethernet nor InfiniBand";
  }
  for (const Nic& nic : machine_.nics) {  // Azure's stand on a virtual function that is there, too
    if (sysfs_.has(folder + "/lower_" + nic.name)) {
      return "the same port as " + nic.name;
    }
  }
  return state == "down" || state == "lowerlayerdown" || state == "notpresent" ? "down" : "";
}

void Adapters::add_loose(hwloc_obj_t device) {
  if (device->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK || !sysfs_.exists()) {
    return;  // what a file has beside PCIe was made by software, as far as anyone can tell
  }
  const std::string name = name_of(device), reason = reason_against(name);
  if (reason.empty()) {
    add(name, "", "ethernet", port_gbit_s(sysfs_.line("/class/net/" + name + "/speed"), 1000));
  } else {
    left_out_ += ", " + printable(name) + " (" + reason + ")";
  }
}

void Adapters::number() {
  std::set<std::string> functions;
  for (const Nic& nic : machine_.nics) {
    functions.insert(nic.bus_id);
  }
  std::erase_if(machine_.nics, [&](const Nic& nic) {
    std::error_code error;
    const auto physical =
        std::filesystem::read_symlink(sysfs_.root + "/bus/pci/devices/" + nic.bus_id + "/physfn", error);
    return sysfs_.exists() && !physical.empty() && functions.count(physical.filename()) != 0;
  });
  std::sort(machine_.nics.begin(), machine_.nics.end(), [](const Nic& a, const Nic& b) {
    const int by_name = strverscmp(a.name.c_str(), b.name.c_str());  // mlx5_2 before mlx5_10
    return std::tuple(!a.speaks_rdma(), by_name, a.bus_id) < std::tuple(!b.speaks_rdma(), 0, b.bus_id);
  });
  for (size_t index = 0; index < machine_.nics.size(); ++index) {
    machine_.nics[index].index = static_cast<int>(index);
  }
  if (!left_out_.empty()) {
    machine_.note("left out: " + left_out_.substr(2));
  }
}

}  // namespace isthmus::topology
