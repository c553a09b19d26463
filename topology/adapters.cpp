// NICs: which ports there are, under which name, and what is none.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <tuple>

#include "topology/hwloc.h"

namespace isthmus::topology {
namespace {

// The speed of a port in what a driver says, "200 Gb/sec (4X HDR)" or Mbit/s.
std::optional<double> port_gbit_s(const std::string& text, double divisor) {
  char* end = nullptr;
  const double speed = std::strtod(text.c_str(), &end) / divisor;
  return end != text.c_str() && speed > 0 && speed <= kMostGbitS ? std::optional(speed) : std::nullopt;
}

class Ports {
 public:
  Ports(Machine& machine, const Sysfs& sysfs) : machine_(machine), sysfs_(sysfs) {}

  // A port may be seen twice, as a verbs device (mlx5_0) and as an interface (ens1np0): it is one NIC under the verbs
  // device's name.
  void add(const Function& function) {
    taken_.clear();
    bool is_named = false;
    for (const auto type : {HWLOC_OBJ_OSDEV_OPENFABRICS, HWLOC_OBJ_OSDEV_NETWORK}) {
      hwloc_obj_t device = is_named ? nullptr : function.object->io_first_child;
      for (; device != nullptr; device = device->next_sibling) {
        if (device->type == HWLOC_OBJ_OS_DEVICE && device->attr->osdev.type == type) {
          type == HWLOC_OBJ_OSDEV_NETWORK ? add_interface(name_of(device), function) : add_verbs(device, function);
          is_named = true;
        }
      }
    }
    if (!sysfs_.exists() && !is_named && is_nic(function.object->attr->pcidev.class_id)) {
      add("", function, kind_of(function, "", function.object->attr->pcidev.class_id == 0x0207), {});
    }
  }

  // function: of no object for an interface that is on no PCIe bus.
  void add_interface(const std::string& name, const Function& function) {
    const std::string folder = "/class/net/" + name + "/", type = sysfs_.line(folder + "type");
    if (sysfs_.line(folder + "phys_port_name").find("pf") != std::string::npos) {
      return;  // a representor: the end of a virtual function's wire in the adapter's own switch, such as pf0vf1
    }
    const std::string reason = reason_against(folder, type, function);
    if (!reason.empty()) {
      left_out_ += ", " + printable(name) + " (" + reason + ")";
      return;
    }
    const bool is_told = !type.empty() || function.object == nullptr;
    add(name, function,
        type == "32" ? "infiniband"
        : is_told    ? "ethernet"
                     : kind_of(function, name, false),
        port_gbit_s(sysfs_.line(folder + "speed"), 1000));
  }

  // Numbers them: verbs devices first, then interfaces, each by name. Virtual functions whose physical function is
  // there go.
  void number() {
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
    std::ranges::sort(machine_.nics, [](const Nic& a, const Nic& b) {
      const int by_name = strverscmp(a.name.c_str(), b.name.c_str());  // mlx5_2 before mlx5_10
      return std::tuple(!a.speaks_rdma(), by_name, a.bus_id) < std::tuple(!b.speaks_rdma(), 0, b.bus_id);
    });
    for (int index = 0; Nic & nic : machine_.nics) {
      nic.index = index++;
    }
    if (!left_out_.empty()) {
      machine_.note("left out: " + left_out_.substr(2));
    }
  }

 private:
  void add(const std::string& name, const Function& function, const std::string& kind,
           std::optional<double> speed_gbit_s) {
    Nic& nic = machine_.nics.emplace_back();
    nic.bus_id = function.object == nullptr ? "" : bus_id(function.object);
    nic.place = function.place;
    nic.name = printable(name);
    nic.kind = kind;
    nic.speed_gbit_s = speed_gbit_s;
  }

  static std::string kind_of(const Function& function, const std::string& name, bool speaks_verbs) {
    return nic_kind(function.object->attr->pcidev.class_id, function.object->attr->pcidev.vendor_id, name,
                    speaks_verbs);
  }

  void add_verbs(hwloc_obj_t device, const Function& function) {
    const std::string name = name_of(device), folder = "/class/infiniband/" + name + "/";
    for (int port = 1; port < 256; ++port) {
      const std::string number = std::to_string(port);
      const std::string own = isthmus::detail::concatenate(folder, "ports/", number, "/");
      const std::string state = sysfs_.exists() ? sysfs_.line(own + "state") : info(device, "Port" + number + "State");
      const std::string shown = isthmus::detail::concatenate(name, port == 1 ? "" : ":" + number);
      if (port > 1 && state.empty()) {
        break;
      }
      if (!state.empty() && state[0] != '4') {  // 4: ACTIVE
        left_out_ += ", " + printable(shown) + " (down)";
        continue;
      }
      const std::string layer = sysfs_.line(own + "link_layer");
      std::string kind = kind_of(function, name, true);
      if (kind != "efa" && !layer.empty()) {
        const bool is_iwarp = sysfs_.line(folder + "node_type").starts_with('4');
        kind = layer == "InfiniBand" ? "infiniband" : layer != "Ethernet" ? "unknown" : is_iwarp ? "ethernet" : "roce";
      }
      add(shown, function, kind, port_gbit_s(sysfs_.line(own + "rate"), 1));
    }
  }

  std::string reason_against(const std::string& folder, const std::string& type, const Function& function) {
    const std::string state = sysfs_.line(folder + "operstate");
    if (!type.empty() && type != "1" && type != "32") {
      return "neither Ethernet nor InfiniBand";
    }
    for (const Nic& nic : machine_.nics) {  // Azure's stand on a virtual function that is there, too
      if (sysfs_.has(folder + "lower_" + nic.name)) {
        return "the same port as " + nic.name;
      }
    }
    if (state == "down" || state == "lowerlayerdown" || state == "notpresent") {
      return "down";
    }
    const bool is_taken = function.object != nullptr && !taken_.insert(sysfs_.line(folder + "dev_port")).second;
    return is_taken ? "the same port as another interface" : "";
  }

  Machine& machine_;
  const Sysfs& sysfs_;
  std::set<std::string> taken_;  // ports of the function that is read, as its interfaces number them
  std::string left_out_;
};

}  // namespace

void read_nics(Machine& machine, const Sysfs& sysfs, const std::vector<Function>& functions,
               const std::vector<std::string>& loose) {
  Ports ports(machine, sysfs);
  for (const Function& function : functions) {
    ports.add(function);
  }
  for (const std::string& interface : loose) {
    ports.add_interface(interface, {nullptr, -1});
  }
  ports.number();
}

}  // namespace isthmus::topology
