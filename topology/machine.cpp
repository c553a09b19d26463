#include "topology/machine.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>

namespace isthmus::topology {
namespace {

// Sorts devices by their numbers; returns where each has gone, -1: it is left out.
template <typename Device>
std::vector<int> number_devices(std::vector<Device>& devices, const std::string& what, Machine& machine) {
  std::vector<int> order, moved(devices.size(), -1);
  std::set<int> numbers;
  for (int place = 0; place < static_cast<int>(devices.size()); ++place) {
    if (devices[place].index != kLeftOut) {
      order.push_back(place);
      numbers.insert(devices[place].index);
    }
  }
  require(order.size() <= kMostDevices, 0, "has ", order.size(), " ", what, ", more than the ", kMostDevices,
          " that a machine may have");
  const bool by_bus_id = numbers.size() < order.size() || numbers.count(-1) != 0;
  if (by_bus_id && order.size() > 1) {
    machine.note(what + " are numbered by rising bus id, as their drivers do");
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const Device &one = devices[a], &other = devices[b];
    return by_bus_id ? std::pair(one.bus_id.empty(), one.bus_id) < std::pair(other.bus_id.empty(), other.bus_id)
                     : one.index < other.index;
  });
  std::vector<Device> sorted;
  for (const int from : order) {
    moved[from] = static_cast<int>(sorted.size());
    sorted.push_back(devices[from]);
    sorted.back().index = by_bus_id ? moved[from] : sorted.back().index;
  }
  devices = std::move(sorted);
  return moved;
}

// Returns whether anything is left of the place.
bool settle(PcieNode& place, const std::vector<int>& gpus, const std::vector<int>& nics) {
  for (int& device : place.devices) {
    device = (place.kind == "gpu" ? gpus : nics)[device];
  }
  std::erase(place.devices, -1);
  std::erase_if(place.children, [&](PcieNode& child) { return !settle(child, gpus, nics); });
  return !place.devices.empty() || !place.children.empty();
}

void add_paths(const Machine& machine, const PcieNode& place, Path& above, std::vector<Path>& paths) {
  above.push_back(&place);
  for (const int device : place.devices) {
    paths[device + (place.kind == "gpu" ? 0 : machine.gpus.size())] = above;
  }
  for (const PcieNode& child : place.children) {
    add_paths(machine, child, above, paths);
  }
  above.pop_back();
}

// The NVLinks of two GPUs: those that name the other one, or as many as both have to switches, which are taken for one
// fabric.
std::optional<Link> over_nvlink(const Gpu& a, const Gpu& b, Machine& machine) {
  std::optional<double> slowest = 1e9;
  int switched[2] = {0, 0}, direct[2] = {0, 0};
  for (const int side : {0, 1}) {
    const auto& [own, peer] = side == 0 ? std::tie(a, b) : std::tie(b, a);
    for (const NvLinks& links : own.nvlinks) {
      const bool is_direct = !peer.bus_id.empty() && links.peer == peer.bus_id;
      (is_direct ? direct : switched)[side] += is_direct || links.is_to_switch ? links.count : 0;
      if (is_direct || links.is_to_switch) {
        slowest = slowest && links.gbit_s ? std::optional(std::min(*slowest, *links.gbit_s)) : std::nullopt;
      }
    }
  }
  if (direct[0] != 0 && direct[1] != 0 && direct[0] != direct[1]) {
    machine.note("two GPUs name different numbers of NVLinks between them: the fewer are taken");
  }
  const bool both = direct[0] != 0 && direct[1] != 0;
  const int named = both ? std::min(direct[0], direct[1]) : std::max(direct[0], direct[1]);
  const int count = named != 0 ? named : std::min(switched[0], switched[1]);
  if (count == 0) {
    return std::nullopt;
  }
  return Link{"NV" + std::to_string(count), slowest ? std::optional(*slowest * count) : std::nullopt};
}

Link over_pcie(const Path& a, const Path& b, bool in_one_numa_node) {
  const size_t shared = num_shared(a, b);
  if (shared == 0 && !in_one_numa_node) {
    return {"SYS", std::nullopt};
  }
  // The last shared place is the host bridge, a switch, or the adapter itself; below it come switches and the devices.
  const bool is_near = std::max(a.size(), b.size()) <= shared + 1;
  Link link{shared == 0 ? "NODE" : shared == 1 ? "PHB" : is_near ? "PIX" : "PXB", 1e9};
  for (const Path& path : {a, b}) {
    for (size_t level = std::max<size_t>(shared, 1); level < path.size(); ++level) {
      const auto& speed = path[level]->link_speed_gbit_s;
      link.speed_gbit_s =
          link.speed_gbit_s && speed ? std::optional(std::min(*link.speed_gbit_s, *speed)) : std::nullopt;
    }
  }
  if (a.empty() || b.empty() || link.speed_gbit_s == 1e9) {
    link.speed_gbit_s.reset();
  }
  return link;
}

void link_devices(Machine& machine) {
  const std::vector<Path> paths = machine.paths();
  const int num_gpus = static_cast<int>(machine.gpus.size()), size = machine.num_devices();
  const auto numa_node = [&](int device) {
    return device < num_gpus ? machine.gpus[device].numa_node : machine.nics[device - num_gpus].numa_node;
  };
  machine.links.assign(static_cast<size_t>(size) * size, {"X", std::nullopt});
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) {
      std::optional<Link> link;
      if (b < num_gpus) {
        link = over_nvlink(machine.gpus[a], machine.gpus[b], machine);
      }
      if (!link) {
        // Where there is one NUMA node only, devices are in it, even if the source does not say so.
        const bool known = numa_node(a) && numa_node(b);
        link = over_pcie(paths[a], paths[b], known ? numa_node(a) == numa_node(b) : machine.numa_nodes.size() <= 1);
      }
      machine.links[a * size + b] = machine.links[b * size + a] = *link;
    }
  }
}

}  // namespace

std::string Machine::id(int device) const {
  const int num_gpus = static_cast<int>(gpus.size());
  return device < num_gpus ? "GPU" + std::to_string(gpus[device].index)
                           : "NIC" + std::to_string(nics[device - num_gpus].index);
}

std::vector<Path> Machine::paths() const {
  std::vector<Path> found(gpus.size() + nics.size());
  Path above;
  for (const PcieNode& tree : pcie) {
    add_paths(*this, tree, above, found);
  }
  return found;
}

void Machine::note(const std::string& text) {
  if (std::find(notes.begin(), notes.end(), text) == notes.end()) {
    notes.push_back(text);
  }
}

void finish(Machine& machine) {
  const std::vector<Path> paths = machine.paths();
  for (size_t device = 0; device < paths.size(); ++device) {
    const size_t num_gpus = machine.gpus.size();
    if (!paths[device].empty()) {
      (device < num_gpus ? machine.gpus[device].numa_node : machine.nics[device - num_gpus].numa_node) =
          paths[device].front()->numa_node;
    }
  }
  const std::vector<int> gpus = number_devices(machine.gpus, "GPUs", machine);
  const std::vector<int> nics = number_devices(machine.nics, "NICs", machine);
  std::erase_if(machine.pcie, [&](PcieNode& tree) { return !settle(tree, gpus, nics); });
  link_devices(machine);
}

size_t num_shared(const Path& a, const Path& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

std::string printable(const std::string& text) {
  constexpr std::string_view kBlanks(" \t\r\n\v\f\0", 7);
  const size_t first = text.find_first_not_of(kBlanks), last = text.find_last_not_of(kBlanks);
  std::string shown;
  for (size_t i = first; i != std::string::npos && i <= last; ++i) {
    const bool continues = (text[i] & 0xC0) == 0x80;  // a character of UTF-8 is one question mark
    if (text[i] >= ' ' && text[i] < 0x7F) {
      shown += text[i];
    } else if (!continues) {
      shown += '?';
    }
  }
  return shown;
}

}  // namespace isthmus::topology
