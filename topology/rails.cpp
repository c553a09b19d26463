#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "topology/machine.h"

namespace isthmus::topology {
namespace {

// A NIC slower than this share of the fastest one is for management: no rail runs over it.
constexpr double kLeastShareOfFastest = .5;

int farness(const std::string& kind) {
  static const std::vector<std::string> kKinds = {"PIX", "PXB", "PHB", "NODE", "SYS"};
  return is_fast(kind) ? -1 : static_cast<int>(std::find(kKinds.begin(), kKinds.end(), kind) - kKinds.begin());
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

// Gives each rank one of its nearest NICs, so that as few as possible share one, and then those that are left to the
// rank near them that has least. Who has the fewest choices chooses first: on a tree sets of nearest NICs are nested or
// disjoint, and then no other order shares less.
std::vector<std::vector<int>> spread(const Machine& machine, const std::vector<int>& rail_nics, int num_ranks) {
  std::vector<std::pair<int, std::vector<int>>> choices;
  choices.reserve(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    choices.emplace_back(rank, nearest(machine, rail_nics, rank));
  }
  std::ranges::stable_sort(choices, {}, [](const auto& choice) { return choice.second.size(); });
  std::vector<std::vector<int>> chosen(num_ranks);
  std::map<int, int> load;
  for (const auto& [rank, near] : choices) {
    // All count as equally fast if the speed of one is unknown.
    const bool is_known =
        std::ranges::all_of(near, [&](int nic) { return machine.nics[nic].speed_gbit_s.has_value(); });
    // The NIC that leaves most to one more rank; the first of equals.
    const auto room = [&](int nic) { return (is_known ? *machine.nics[nic].speed_gbit_s : 1) / (load[nic] + 1); };
    chosen[rank].push_back(*std::ranges::max_element(near, {}, room));
    ++load[chosen[rank][0]];
  }
  for (const int nic : rail_nics) {
    std::vector<int> near;
    for (const auto& [rank, nics] : choices) {
      if (load[nic] == 0 && !machine.gpus.empty() && std::ranges::count(nics, nic) != 0) {
        near.push_back(rank);
      }
    }
    if (!near.empty()) {
      std::ranges::sort(near);
      chosen[*std::ranges::min_element(near, {}, [&](int rank) { return chosen[rank].size(); })].push_back(nic);
    }
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

// What bounds each of the ways that are used at once: the links of its places, which the ways over them divide.
std::vector<double> bounds_of(const std::vector<Path>& ways) {
  std::map<const PcieNode*, int> num_over;
  for (const Path& way : ways) {
    for (const PcieNode* place : way) {
      ++num_over[place];
    }
  }
  std::vector<double> bounds(ways.size(), kMostGbitS);
  for (size_t way = 0; way < ways.size(); ++way) {
    for (const PcieNode* place : ways[way]) {
      bounds[way] = std::min(bounds[way], place->link_speed_gbit_s.value_or(kMostGbitS) / num_over[place]);
    }
  }
  return bounds;
}

// What each rank gets of its NICs: of each its share, as far as the PCIe path allows it. Unknown where a NIC's speed
// is.
std::vector<std::optional<double>> speeds(const Machine& machine, const std::vector<std::vector<int>>& chosen) {
  const int num_gpus = static_cast<int>(machine.gpus.size()), num_ranks = static_cast<int>(chosen.size());
  std::vector<Path> ways;
  std::map<int, int> num_of;
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (const int nic : chosen[rank]) {
      ++num_of[nic];
      ways.push_back(num_gpus == 0 ? Path() : between(machine.path(rank), machine.path(num_gpus + nic)));
    }
  }
  const std::vector<double> bounds = bounds_of(ways);
  std::vector<std::optional<double>> found;
  for (int rank = 0, way = 0; rank < num_ranks; ++rank) {
    std::optional<double> sum = 0;
    for (const int nic : chosen[rank]) {
      const auto link = num_gpus == 0 ? std::nullopt : machine.link(rank, num_gpus + nic).speed_gbit_s;
      const double bound = std::min(bounds[way++], link.value_or(kMostGbitS));
      const auto speed = machine.nics[nic].speed_gbit_s;
      sum = sum && speed ? std::optional(*sum + std::min(*speed / num_of[nic], bound)) : std::nullopt;
    }
    found.push_back(sum);
  }
  return found;
}

// "mlx5_0, NIC3": those that `holds`.
template <typename Holds>
std::string names_of(const Machine& machine, const Holds& holds) {
  std::string names;
  for (int nic = 0; nic < static_cast<int>(machine.nics.size()); ++nic) {
    const std::string& name = machine.nics[nic].name;
    names += !holds(nic)    ? ""
             : name.empty() ? ", " + machine.id(static_cast<int>(machine.gpus.size()) + nic)
                            : ", " + name;
  }
  return names.empty() ? "" : names.substr(2);
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
  const std::vector<int> usable = rail_nics(machine);
  const std::vector<std::vector<int>> chosen = spread(machine, usable, num_ranks);
  const std::vector<std::optional<double>> gbit_s = speeds(machine, chosen);
  Rails found;
  std::set<int> used;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto shares = [&](const std::vector<int>& nics) { return nics[0] == chosen[rank][0]; };
    Rail rail{rank, -1, chosen[rank], "", static_cast<int>(std::ranges::count_if(chosen, shares)), gbit_s[rank]};
    if (num_gpus > 0) {
      rail.gpu = rank;
      rail.distance = machine.link(rank, num_gpus + chosen[rank][0]).kind;
    }
    used.insert(chosen[rank].begin(), chosen[rank].end());
    found.rails.push_back(rail);
  }
  const auto is_usable = [&](int nic) { return std::ranges::count(usable, nic) != 0; };
  if (const std::string slow = names_of(machine, std::not_fn(is_usable)); !slow.empty()) {
    found.notes.push_back("no rail runs over " + slow + ": others are faster, or speak RDMA");
  }
  const auto is_idle = [&](int nic) { return is_usable(nic) && used.count(nic) == 0; };
  if (const std::string idle = names_of(machine, is_idle); !idle.empty() && num_ranks == std::max(num_gpus, 1)) {
    found.notes.push_back("no rail runs over " + idle + ": every GPU has nearer ones");
  }
  if (num_gpus == 0) {
    found.notes.emplace_back("no GPU: ranks take NICs by turns");
  }
  if (std::ranges::any_of(found.rails, [](const Rail& rail) { return !rail.speed_gbit_s; })) {
    found.notes.emplace_back("the speed of a rail's NIC is unknown: measure it, or give it");
  }
  return found;
}

Islands find_islands(const Machine& machine) {
  const int num_gpus = static_cast<int>(machine.gpus.size());
  const auto joined_by = [&](int nearest, int farthest, bool numa) {
    std::vector<int> island(num_gpus);
    std::iota(island.begin(), island.end(), 0);
    for (int a = 0; a < num_gpus; ++a) {
      for (int b = 0; b < a; ++b) {
        const int far = farness(machine.link(a, b).kind);
        const auto &one = machine.gpus[a].numa_node, &other = machine.gpus[b].numa_node;
        if (((far >= nearest && far <= farthest) || (numa && one && one == other)) && island[a] != island[b]) {
          std::ranges::replace(island, std::max(island[a], island[b]), std::min(island[a], island[b]));
        }
      }
    }
    std::map<int, std::vector<int>> gpus;
    for (int gpu = 0; gpu < num_gpus; ++gpu) {
      gpus[island[gpu]].push_back(gpu);
    }
    std::vector<std::vector<int>> found;
    found.reserve(gpus.size());
    for (const auto& [first, members] : gpus) {
      found.push_back(members);
    }
    return found;
  };
  std::string fast;
  for (int pair = 0; pair < num_gpus * num_gpus && fast.empty(); ++pair) {
    const std::string& kind = machine.link(pair / num_gpus, pair % num_gpus).kind;
    fast = is_fast(kind) ? kind.starts_with("NV") ? "NVLink" : kind : "";
  }
  Islands found;
  for (const auto& [by, nearest, farthest, numa] :
       {std::tuple(fast.c_str(), -1, -1, false), {"PCIe switch", 0, 1, false}, {"NUMA node", 0, 3, true}}) {
    found.gpus = joined_by(nearest, farthest, numa);
    if (static_cast<int>(found.gpus.size()) < num_gpus) {
      found.by = by;
      break;
    }
  }
  if (found.gpus.size() < 2) {
    return found;
  }
  int farthest = 0;
  std::vector<Path> ways;
  for (const std::vector<int>& island : found.gpus) {
    const int beyond = found.gpus[&island == &found.gpus[0] ? 1 : 0][0];
    for (const int gpu : island) {
      ways.push_back(between(machine.path(gpu), machine.path(beyond)));
      std::erase_if(ways.back(), [&](const PcieNode* place) {  // the other's half of the way
        return std::ranges::count(machine.path(gpu), place) == 0;
      });
      for (int other = 0; other < num_gpus; ++other) {
        if (std::ranges::count(island, other) == 0 && farness(machine.link(gpu, other).kind) >= farthest) {
          farthest = farness(machine.link(gpu, other).kind);
          found.distance = machine.link(gpu, other).kind;
        }
      }
    }
  }
  const double slowest = std::ranges::min(bounds_of(ways));
  found.gbit_s = slowest < kMostGbitS ? std::optional(slowest) : std::nullopt;
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
