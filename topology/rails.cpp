#include <algorithm>
#include <map>

#include "topology/machine.h"

namespace isthmus::topology {
namespace {

// A NIC slower than this share of the fastest one is for management: no rail runs over it.
constexpr double kLeastShareOfFastest = .5;

int farness(const std::string& kind) {
  static const std::vector<std::string> kKinds = {"PIX", "PXB", "PHB", "NODE", "SYS"};
  return kind.starts_with("NV") ? -1 : static_cast<int>(std::find(kKinds.begin(), kKinds.end(), kind) - kKinds.begin());
}

// The nearest NICs to a GPU among those that rails run over; all of them, where there is no GPU.
std::vector<int> nearest(const Machine& machine, const std::vector<int>& rail_nics, int gpu) {
  const int num_gpus = static_cast<int>(machine.gpus.size());
  std::map<int, std::vector<int>> nics;
  for (const int nic : rail_nics) {
    nics[num_gpus > 0 ? farness(machine.link(gpu, num_gpus + nic).kind) : 0].push_back(nic);
  }
  return nics.begin()->second;
}

// Gives each rank one of its nearest NICs, so that as few as possible share one. Who has the fewest choices chooses
// first: on a tree sets of nearest NICs are nested or disjoint, and then no other order shares less.
std::vector<int> spread(const Machine& machine, const std::vector<int>& rail_nics, int num_ranks) {
  std::vector<std::pair<int, std::vector<int>>> choices;
  choices.reserve(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    choices.emplace_back(rank, nearest(machine, rail_nics, rank));
  }
  std::ranges::stable_sort(choices, {}, [](const auto& choice) { return choice.second.size(); });
  std::vector<int> chosen(num_ranks);
  std::map<int, int> load;
  for (const auto& [rank, near] : choices) {
    // All count as equally fast if the speed of one is unknown.
    const bool is_known =
        std::ranges::all_of(near, [&](int nic) { return machine.nics[nic].speed_gbit_s.has_value(); });
    // The NIC that leaves most to one more rank; the first of equals.
    const auto room = [&](int nic) { return (is_known ? *machine.nics[nic].speed_gbit_s : 1) / (load[nic] + 1); };
    chosen[rank] = *std::ranges::max_element(near, {}, room);
    ++load[chosen[rank]];
  }
  return chosen;
}

// The places on the way whose links towards the root bound it: devices, and switches at a host bridge. Links between
// switches do not: one chip may present itself as several, which no real link joins.
Path between(const Path& a, const Path& b) {
  Path places;
  for (const Path& path : {a, b}) {
    for (size_t level = std::max<size_t>(num_shared(a, b), 1); level < path.size(); ++level) {
      if (level == 1 || path[level]->kind != "switch") {
        places.push_back(path[level]);
      }
    }
  }
  return places;
}

// What bounds each GPU's way to the NIC that it chose: its own speed, and that of its PCIe links, divided among the
// ways over them.
std::vector<double> pcie_bounds(const Machine& machine, const std::vector<int>& chosen) {
  const int num_gpus = static_cast<int>(machine.gpus.size());
  std::vector<double> bounds;
  std::vector<Path> ways;
  std::map<const Place*, int> num_over;
  for (size_t gpu = 0; gpu < chosen.size(); ++gpu) {
    const int nic = num_gpus + chosen[gpu];
    ways.push_back(between(machine.path(static_cast<int>(gpu)), machine.path(nic)));
    for (const Place* place : ways.back()) {
      ++num_over[place];
    }
    bounds.push_back(machine.link(static_cast<int>(gpu), nic).speed_gbit_s.value_or(kMostGbitS));
  }
  for (size_t gpu = 0; gpu < chosen.size(); ++gpu) {
    for (const Place* place : ways[gpu]) {
      bounds[gpu] = std::min(bounds[gpu], place->link_speed_gbit_s.value_or(kMostGbitS) / num_over[place]);
    }
  }
  return bounds;
}

}  // namespace

Rails find_rails(const Machine& machine, std::optional<int> ranks_per_node) {
  const int num_gpus = static_cast<int>(machine.gpus.size()), num_nics = static_cast<int>(machine.nics.size());
  const int num_ranks = ranks_per_node.value_or(std::max(num_gpus, 1));
  require(num_ranks >= 1 && (num_gpus == 0 || num_ranks <= num_gpus), 0, num_ranks, " ranks a node: expected 1 ",
          num_gpus == 0 ? "or more" : "to " + std::to_string(num_gpus) + ", one a GPU");
  if (num_nics == 0) {
    return {{}, {machine.name + " has no NIC: nothing is known of the way to other nodes"}};
  }
  const std::vector<int> usable = rail_nics(machine), chosen = spread(machine, usable, num_ranks);
  const std::vector<double> bounds =
      num_gpus > 0 ? pcie_bounds(machine, chosen) : std::vector<double>(num_ranks, kMostGbitS);
  Rails found;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int nic = chosen[rank];
    Rail rail{rank, -1, nic, "", static_cast<int>(std::ranges::count(chosen, nic)), {}};
    if (num_gpus > 0) {
      rail.gpu = rank;
      rail.distance = machine.link(rank, num_gpus + nic).kind;
    }
    if (const auto speed = machine.nics[nic].speed_gbit_s) {
      rail.speed_gbit_s = std::min(*speed / rail.num_sharing, bounds[rank]);
    }
    found.rails.push_back(rail);
  }
  std::string slow;
  for (int nic = 0; nic < num_nics; ++nic) {
    if (std::ranges::count(usable, nic) == 0) {
      const std::string& name = machine.nics[nic].name;
      slow += ", " + (name.empty() ? machine.id(num_gpus + nic) : name);
    }
  }
  if (!slow.empty()) {
    found.notes.push_back("no rail runs over " + slow.substr(2) + ": others are faster, or speak RDMA");
  }
  if (num_gpus == 0) {
    found.notes.emplace_back("no GPU: ranks take NICs by turns");
  }
  if (std::ranges::any_of(found.rails, [](const Rail& rail) { return !rail.speed_gbit_s; })) {
    found.notes.emplace_back("the speed of a rail's NIC is unknown: measure it, or give it");
  }
  return found;
}

std::vector<int> rail_nics(const Machine& machine) {
  const bool has_rdma = std::ranges::any_of(machine.nics, &Nic::speaks_rdma);
  const auto counts = [&](const Nic& nic) { return !has_rdma || nic.kind != "ethernet"; };
  double fastest = 0;
  for (const Nic& nic : machine.nics) {
    fastest = counts(nic) ? std::max(fastest, nic.speed_gbit_s.value_or(0)) : fastest;
  }
  std::vector<int> found;
  for (int nic = 0; nic < static_cast<int>(machine.nics.size()); ++nic) {
    const Nic& one = machine.nics[nic];
    if (counts(one) && one.speed_gbit_s.value_or(fastest) >= kLeastShareOfFastest * fastest) {
      found.push_back(nic);
    }
  }
  return found;
}

}  // namespace isthmus::topology
