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

class Pairing {
 public:
  Pairing(const Machine& machine, int num_ranks)
      : machine_(machine), num_gpus_(static_cast<int>(machine.gpus.size())), nics_(rail_nics(machine)) {
    spread(num_ranks);
  }

  Rails rails() const {
    Rails found;
    const std::vector<double> bounds = pcie_bounds();
    for (int rank = 0; rank < static_cast<int>(chosen_.size()); ++rank) {
      const int nic = chosen_[rank];
      Rail& rail = found.rails.emplace_back();
      rail.local_index = rank;
      rail.gpu = num_gpus_ > 0 ? rank : -1;
      rail.nic = nic;
      rail.distance = num_gpus_ > 0 ? link(rank, nic).kind : "";
      rail.num_sharing = static_cast<int>(std::count(chosen_.begin(), chosen_.end(), nic));
      if (const auto speed = machine_.nics[nic].speed_gbit_s) {
        rail.speed_gbit_s = std::min(*speed / rail.num_sharing, bounds[rank]);
      }
    }
    note_what_to_know(found);
    return found;
  }

 private:
  const Link& link(int gpu, int nic) const { return machine_.link(gpu, num_gpus_ + nic); }

  std::vector<int> nearest(int gpu) const {
    std::map<int, std::vector<int>> nics;
    for (const int nic : nics_) {
      nics[num_gpus_ > 0 ? farness(link(gpu, nic).kind) : 0].push_back(nic);
    }
    return nics.begin()->second;
  }

  // Gives each rank one of its nearest NICs, so that as few as possible share one. Who has the fewest choices chooses
  // first: on a tree sets of nearest NICs are nested or disjoint, and then no other order shares less.
  void spread(int num_ranks) {
    std::vector<std::pair<int, std::vector<int>>> choices;
    choices.reserve(num_ranks);
    for (int rank = 0; rank < num_ranks; ++rank) {
      choices.emplace_back(rank, nearest(rank));
    }
    std::stable_sort(choices.begin(), choices.end(),
                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    chosen_.resize(num_ranks);
    std::map<int, int> load;
    for (const auto& [rank, near] : choices) {
      // All count as equally fast if the speed of one is unknown.
      const bool is_known =
          std::all_of(near.begin(), near.end(), [&](int nic) { return machine_.nics[nic].speed_gbit_s.has_value(); });
      // The NIC that leaves most to one more rank; the first of equals.
      const auto room = [&](int nic) { return (is_known ? *machine_.nics[nic].speed_gbit_s : 1) / (load[nic] + 1); };
      chosen_[rank] = *std::max_element(near.begin(), near.end(), [&](int a, int b) { return room(a) < room(b); });
      ++load[chosen_[rank]];
    }
  }

  // What bounds each rank's way: its own speed, and that of its PCIe links, divided among the ways over them.
  std::vector<double> pcie_bounds() const {
    std::vector<double> bounds(chosen_.size(), kMostGbitS);
    std::vector<Path> ways;
    std::map<const Place*, int> num_over;
    for (int rank = 0; rank < static_cast<int>(chosen_.size()) && num_gpus_ > 0; ++rank) {
      ways.push_back(between(machine_.path(rank), machine_.path(num_gpus_ + chosen_[rank])));
      for (const Place* place : ways.back()) {
        ++num_over[place];
      }
      bounds[rank] = link(rank, chosen_[rank]).speed_gbit_s.value_or(kMostGbitS);
    }
    for (size_t rank = 0; rank < ways.size(); ++rank) {
      for (const Place* place : ways[rank]) {
        bounds[rank] = std::min(bounds[rank], place->link_speed_gbit_s.value_or(kMostGbitS) / num_over[place]);
      }
    }
    return bounds;
  }

  // The places on the way whose links towards the root bound it: devices, and switches at a host bridge. Links between
  // switches do not: one chip may present itself as several, which no real link joins.
  static Path between(const Path& a, const Path& b) {
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

  void note_what_to_know(Rails& found) const {
    std::string slow;
    for (int nic = 0; nic < static_cast<int>(machine_.nics.size()); ++nic) {
      if (std::count(nics_.begin(), nics_.end(), nic) == 0) {
        const std::string& name = machine_.nics[nic].name;
        slow += ", " + (name.empty() ? machine_.id(num_gpus_ + nic) : name);
      }
    }
    if (!slow.empty()) {
      found.notes.push_back("no rail runs over " + slow.substr(2) + ": others are faster, or speak RDMA");
    }
    if (num_gpus_ == 0) {
      found.notes.emplace_back("no GPU: ranks take NICs by turns");
    }
    if (std::any_of(found.rails.begin(), found.rails.end(), [](const Rail& rail) { return !rail.speed_gbit_s; })) {
      found.notes.emplace_back("the speed of a rail's NIC is unknown: measure it, or give it");
    }
  }

  const Machine& machine_;
  int num_gpus_;
  std::vector<int> nics_;    // that rails run over
  std::vector<int> chosen_;  // each rank's
};

}  // namespace

Rails find_rails(const Machine& machine, std::optional<int> ranks_per_node) {
  const int num_gpus = static_cast<int>(machine.gpus.size());
  const int num_ranks = ranks_per_node.value_or(std::max(num_gpus, 1));
  require(num_ranks >= 1 && (num_gpus == 0 || num_ranks <= num_gpus), 0, num_ranks, " ranks a node: expected 1 ",
          num_gpus == 0 ? "or more" : "to " + std::to_string(num_gpus) + ", one a GPU");
  if (machine.nics.empty()) {
    return {{}, {machine.name + " has no NIC: nothing is known of the way to other nodes"}};
  }
  return Pairing(machine, num_ranks).rails();
}

std::vector<int> rail_nics(const Machine& machine) {
  const bool has_rdma =
      std::any_of(machine.nics.begin(), machine.nics.end(), [](const Nic& nic) { return nic.speaks_rdma(); });
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
