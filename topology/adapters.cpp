// NICs: which ports there are, under which name, and what is none; and sysfs, which says it.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "topology/hwloc.h"
#include "topology/pcie.h"

namespace isthmus::topology {
namespace {

// Sorts mlx5_2 before mlx5_10.
std::vector<std::pair<long, char>> natural(const std::string& name) {
  std::vector<std::pair<long, char>> parts;
  for (size_t i = 0; i < name.size(); ++i) {
    long number = -1;
    for (; i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) != 0 && number < 100'000'000; ++i) {
      number = std::max(number, 0L) * 10 + name[i] - '0';
    }
    parts.emplace_back(number, i < name.size() ? name[i] : '\0');
  }
  return parts;
}

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
    std::ifstream file(root_ + path);
    std::getline(file, text);
  }
  return printable(text);
}

std::vector<std::string> Sysfs::names(const std::string& folder) const {
  std::vector<std::string> found;
  std::error_code error;
  std::filesystem::directory_iterator at(root_ + folder, error);
  for (const std::filesystem::directory_iterator end; exists() && !error && at != end; at.increment(error)) {
    found.push_back(at->path().filename());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string Sysfs::target(const std::string& path) const {
  std::error_code error;
  return exists() ? std::filesystem::read_symlink(root_ + path, error).filename().string() : "";
}

void Adapters::add(hwloc_obj_t function, PcieNode& place) {
  const auto first = static_cast<int>(machine_.nics.size());
  std::vector<hwloc_obj_t> interfaces;
  verbs_ports_.clear();
  taken_.clear();
  for (hwloc_obj_t device = function->io_first_child; device != nullptr; device = device->next_sibling) {
    const auto type = device->type == HWLOC_OBJ_OS_DEVICE ? device->attr->osdev.type : HWLOC_OBJ_OSDEV_BLOCK;
    if (type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
      add_verbs(device, function->attr->pcidev);
    } else if (type == HWLOC_OBJ_OSDEV_NETWORK) {
      interfaces.push_back(device);
    }
  }
  for (const hwloc_obj_t device : interfaces) {
    add_interface(device, function->attr->pcidev);
  }
  const int class_code = function->attr->pcidev.class_id;
  if (!sysfs_.exists() && verbs_ports_.empty() && interfaces.empty()) {
    add("", place.bus_id, nic_kind(class_code, function->attr->pcidev.vendor_id, "", class_code == 0x0207), {});
  }
  for (int nic = first; nic < static_cast<int>(machine_.nics.size()); ++nic) {
    place.devices.push_back(nic);
  }
}

void Adapters::add(const std::string& name, const std::string& bus_id, const std::string& kind,
                   std::optional<double> speed_gbit_s) {
  machine_.nics.push_back({-1, printable(name), bus_id, kind, speed_gbit_s, {}});
}

void Adapters::add_verbs(hwloc_obj_t device, const PciAttributes& pci) {
  const std::string name = name_of(device), folder = "/class/infiniband/" + name;
  for (const int port : ports(device)) {
    verbs_ports_.insert(port);
    const std::string number = std::to_string(port), own = isthmus::detail::concatenate(folder, "/ports/", number, "/");
    const std::string shown = port == 1 ? name : isthmus::detail::concatenate(name, ":", number);
    const std::string state = sysfs_.exists() ? sysfs_.line(own + "state") : info(device, "Port" + number + "State");
    if (!state.empty() && state[0] != '4') {  // 4: ACTIVE
      left_out_ += ", " + printable(shown) + " (down)";
      continue;
    }
    const std::string layer = sysfs_.line(own + "link_layer");
    const bool is_iwarp = sysfs_.line(folder + "/node_type").starts_with('4');
    std::string kind = nic_kind(pci.class_id, pci.vendor_id, name, true);
    if (kind != "efa" && !layer.empty()) {
      kind = layer == "InfiniBand" ? "infiniband" : layer != "Ethernet" ? "unknown" : is_iwarp ? "ethernet" : "roce";
    }
    add(shown, bus_id(pci), kind, port_gbit_s(sysfs_.line(own + "rate"), 1));
  }
}

std::vector<int> Adapters::ports(hwloc_obj_t device) const {
  std::vector<int> found;
  for (const std::string& name : sysfs_.names("/class/infiniband/" + name_of(device) + "/ports")) {
    if (name.find_first_not_of("0123456789") == std::string::npos && name.size() < 4) {
      found.push_back(std::stoi(name));
    }
  }
  for (int port = 1; !sysfs_.exists() && port < 256 && !info(device, "Port" + std::to_string(port) + "State").empty();
       ++port) {
    found.push_back(port);
  }
  return found.empty() ? std::vector{1} : found;
}

// A port may be seen twice, as a verbs device (mlx5_0) and as an interface (ens1np0): it is one NIC under the verbs
// device's name: the only one of its function, or that with this number.
void Adapters::add_interface(hwloc_obj_t device, const PciAttributes& pci) {
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
  add(name, bus_id(pci),
      type == "1"    ? "ethernet"
      : type == "32" ? "infiniband"
                     : nic_kind(pci.class_id, pci.vendor_id, name, false),
      port_gbit_s(sysfs_.line(folder + "/speed"), 1000));
}

std::string Adapters::reason_against(const std::string& interface) const {
  const std::string folder = "/class/net/" + interface, state = sysfs_.line(folder + "/operstate"),
                    type = sysfs_.line(folder + "/type");
  if (!type.empty() && type != "1" && type != "32") {
    return "neither Ethernet nor InfiniBand";
  }
  for (const std::string& below : sysfs_.names(folder)) {  // Azure's stand on a virtual function that is there, too
    for (const Nic& nic : machine_.nics) {
      if (below == "lower_" + nic.name) {
        return "the same port as " + nic.name;
      }
    }
  }
  return state == "down" || state == "lowerlayerdown" || state == "notpresent" ? "down" : "";
}

void Adapters::add_loose(hwloc_obj_t device) {
  const std::string name = name_of(device), reason = reason_against(name);
  if (device->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK || !sysfs_.exists()) {
    return;  // what a file has beside PCIe was made by software, as far as anyone can tell
  }
  if (reason.empty()) {
    add(name, "", "ethernet", port_gbit_s(sysfs_.line("/class/net/" + name + "/speed"), 1000));
  } else {
    left_out_ += ", " + printable(name) + " (" + reason + ")";
  }
}

void Adapters::number() {
  std::vector<Nic*> order;
  for (Nic& nic : machine_.nics) {
    const std::string physical = sysfs_.target("/bus/pci/devices/" + nic.bus_id + "/physfn");
    const bool is_there =
        std::any_of(machine_.nics.begin(), machine_.nics.end(), [&](const Nic& one) { return one.bus_id == physical; });
    if (!physical.empty() && is_there) {
      nic.index = kLeftOut;
    } else {
      order.push_back(&nic);
    }
  }
  const auto key = [](const Nic* nic) { return std::tuple(!nic->speaks_rdma(), natural(nic->name), nic->bus_id); };
  std::sort(order.begin(), order.end(), [&](const Nic* a, const Nic* b) { return key(a) < key(b); });
  for (size_t index = 0; index < order.size(); ++index) {
    order[index]->index = static_cast<int>(index);
  }
  if (!left_out_.empty()) {
    machine_.note("left out: " + left_out_.substr(2));
  }
}

}  // namespace isthmus::topology
