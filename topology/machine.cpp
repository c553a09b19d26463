#include "topology/machine.h"

#include <algorithm>
#include <cstdio>
#include <regex>
#include <set>
#include <string_view>

namespace isthmus::topology {
namespace {

template <typename Kind>
void settle(std::vector<Kind>& devices, const std::string& what, Machine& machine) {
  require(devices.size() <= kMostDevices, 0, "has ", devices.size(), " ", what, ", more than the ", kMostDevices,
          " that a machine may have");
  std::set<int> numbers;
  for (Kind& device : devices) {
    numbers.insert(device.index);
    for (int at = device.place; at != -1; at = machine.pcie[at].above) {
      device.numa_node = machine.pcie[at].numa_node;
    }
  }
  const bool by_bus_id = numbers.size() < devices.size() || numbers.count(-1) != 0;
  if (by_bus_id && devices.size() > 1) {
    machine.note(what + " are numbered by rising bus id, as their drivers do");
  }
  if (by_bus_id) {
    std::ranges::stable_sort(devices, {}, [](const Kind& one) { return std::pair(one.bus_id.empty(), one.bus_id); });
    for (int place = 0; Kind & device : devices) {
      device.index = place++;
    }
  } else {
    std::ranges::sort(devices, {}, &Kind::index);
  }
}

// The lesser of two speeds; unknown where one is.
std::optional<double> slower(const std::optional<double>& a, const std::optional<double>& b) {
  return a && b ? std::optional(std::min(*a, *b)) : std::nullopt;
}

// The fast links of two GPUs: those that name the other one, or as many as both have to switches, which are taken for
// one fabric.
std::optional<Link> over_fast_links(const Gpu& a, const Gpu& b, Machine& machine) {
  std::string kind;
  std::optional<double> slowest = kMostGbitS;
  const auto links_to = [&](const Gpu& from, const Gpu& to) {
    std::pair<int, int> direct_and_switched;
    for (const FastLinks& links : from.fast_links) {
      const bool is_direct = !to.bus_id.empty() && links.peer == to.bus_id;
      if (is_direct || links.is_to_switch) {
        (is_direct ? direct_and_switched.first : direct_and_switched.second) += links.count;
        slowest = slower(slowest, links.gbit_s);
        kind = links.kind;
      }
    }
    return direct_and_switched;
  };
  const auto [there, switched] = links_to(a, b);
  const auto [back, switched_back] = links_to(b, a);
  if (there != back && there != 0 && back != 0) {
    machine.note("two GPUs name different numbers of links between them: the fewer are taken");
  }
  const int named = there == 0 || back == 0 ? there + back : std::min(there, back);
  const int count = named != 0 ? named : std::min(switched, switched_back);
  if (count == 0) {
    return std::nullopt;
  }
  return Link{kind == "NV" ? kind + std::to_string(count) : kind,
              slowest ? std::optional(*slowest * count) : std::nullopt};
}

Link over_pcie(const Path& a, const Path& b, bool in_one_numa_node) {
  const size_t shared = num_shared(a, b);
  if (shared == 0 && !in_one_numa_node) {
    return {"SYS", std::nullopt};
  }
  std::optional<double> slowest = kMostGbitS;
  for (const Path& path : {a, b}) {
    for (size_t level = std::max<size_t>(shared, 1); level < path.size(); ++level) {
      slowest = slower(slowest, path[level]->link_speed_gbit_s);
    }
  }
  if (a.empty() || b.empty() || slowest == kMostGbitS) {
    slowest.reset();
  }
  // The last shared place is the host bridge, a switch, or the adapter itself; below it come switches and the devices.
  const bool is_near = std::max(a.size(), b.size()) <= shared + 1;
  return {shared == 0 ? "NODE" : shared == 1 ? "PHB" : is_near ? "PIX" : "PXB", slowest};
}

}  // namespace

const Device& Machine::device(int number) const {
  const int num_gpus = static_cast<int>(gpus.size());
  return number < num_gpus ? static_cast<const Device&>(gpus[number]) : nics[number - num_gpus];
}

std::string Machine::id(int number) const {
  return (number < static_cast<int>(gpus.size()) ? "GPU" : "NIC") + std::to_string(device(number).index);
}

Path Machine::path(int number) const {
  Path found;
  for (int at = device(number).place; at != -1; at = pcie[at].above) {
    found.insert(found.begin(), &pcie[at]);
  }
  return found;
}

int Machine::add(const PcieNode& place) {
  pcie.push_back(place);
  return static_cast<int>(pcie.size()) - 1;
}

void Machine::note(const std::string& text) {
  if (std::ranges::find(notes, text) == notes.end()) {
    notes.push_back(text);
  }
}

void finish(Machine& machine) {
  std::ranges::sort(machine.sockets, {}, &Socket::index);
  std::ranges::sort(machine.numa_nodes, {}, &NumaNode::index);
  for (const Gpu& gpu : machine.gpus) {
    if (gpu.c2c_gbit_s && gpu.place != -1) {
      machine.pcie[gpu.place].link_speed_gbit_s = gpu.c2c_gbit_s;
      machine.note(
          "GPUs reach their processor over C2C: speeds on their PCIe paths are those of C2C and of the NIC's link");
    }
  }
  settle(machine.gpus, "GPUs", machine);
  settle(machine.nics, "NICs", machine);
  const int num_gpus = static_cast<int>(machine.gpus.size()), size = machine.num_devices();
  if (!machine.links.empty()) {
    return;
  }
  machine.links.assign(static_cast<size_t>(size) * size, {"X", std::nullopt});
  for (int a = 0; a < size; ++a) {
    const Path path = machine.path(a);
    for (int b = a + 1; b < size; ++b) {
      auto link = b < num_gpus ? over_fast_links(machine.gpus[a], machine.gpus[b], machine) : std::nullopt;
      if (!link) {
        const auto &one = machine.device(a).numa_node, &other = machine.device(b).numa_node;
        // Where there is one NUMA node only, devices are in it, even if the source does not say so.
        link = over_pcie(path, machine.path(b), one && other ? one == other : machine.numa_nodes.size() <= 1);
      }
      machine.links[a * size + b] = machine.links[b * size + a] = *link;
    }
  }
}

size_t num_shared(const Path& a, const Path& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

std::string printable(const std::string& text) {
  constexpr std::string_view kBlanks(" \t\r\n\v\f\0", 7);
  const size_t first = std::min(text.find_first_not_of(kBlanks), text.size());
  std::string shown;
  for (const char one : text.substr(first, text.find_last_not_of(kBlanks) + 1 - first)) {
    if ((one & 0xC0) != 0x80) {  // a character of UTF-8 is one question mark
      shown += one >= ' ' && one < 0x7F ? one : '?';
    }
  }
  return shown;
}

std::string canonical_bus_id(const std::string& text) {
  static const std::regex pattern(R"(\s*([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?\s*)");
  std::smatch match;
  if (text.size() > 40 || !std::regex_match(text, match, pattern)) {
    return "";
  }
  char id[32];
  const auto hex = [&](int group) { return static_cast<unsigned>(std::stoul(match[group].str(), nullptr, 16)); };
  std::snprintf(id, sizeof id, "%04x:%02x:%02x.%s", hex(1), hex(2), hex(3),
                match[4].matched ? match[4].str().c_str() : "0");
  return id;
}

}  // namespace isthmus::topology
