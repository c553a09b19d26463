#include "topology/rails.h"

#include <algorithm>
#include <map>
#include <set>

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
      : machine_(machine),
        num_ranks_(num_ranks),
        num_gpus_(static_cast<int>(machine.gpus.size())),
        nics_(rail_nics(machine)) {}

  Rails rails() const {
    Rails found;
    const std::vector<int> chosen = num_gpus_ > 0 ? spread() : by_order();
    const std::vector<double> bounds = pcie_bounds(chosen);
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const int nic = chosen[rank], sharing = static_cast<int>(std::count(chosen.begin(), chosen.end(), nic));
      Rail rail{rank, num_gpus_ > 0 ? rank : -1, nic, num_gpus_ > 0 ? link(rank, nic).kind : "", sharing, speed(nic)};
      if (rail.speed_gbit_s) {
        rail.speed_gbit_s = std::min(*rail.speed_gbit_s / sharing, bounds[rank]);
      }
      found.rails.push_back(rail);
    }
    note_what_to_know(found);
    return found;
  }

 private:
  const Link& link(int gpu, int nic) const { return machine_.link(gpu, num_gpus_ + nic); }
  const std::optional<double>& speed(int nic) const { return machine_.nics[nic].speed_gbit_s; }

  // The speed of one of these NICs, all of which count as equal if one's is unknown.
  double weight(int nic, const std::vector<int>& nics) const {
    const bool known = std::all_of(nics.begin(), nics.end(), [&](int one) { return speed(one).has_value(); });
    return known ? *speed(nic) : 1;
  }

  std::vector<int> by_order() const {
    const size_t num_counted = std::min(static_cast<size_t>(num_ranks_), nics_.size());
    std::vector<int> chosen;
    chosen.reserve(num_ranks_);
    for (int rank = 0; rank < num_ranks_; ++rank) {
      chosen.push_back(nics_[rank * num_counted / num_ranks_]);
    }
    return chosen;
  }

  std::vector<int> nearest(int gpu) const {
    std::map<int, std::vector<int>> nics;
    for (const int nic : nics_) {
      nics[farness(link(gpu, nic).kind)].push_back(nic);
    }
    return nics.begin()->second;
  }

  // Gives each GPU one of its nearest NICs, so that as few as possible share one: by order, where that is as good. Who
  // has the fewest choices chooses first: on a tree sets of nearest NICs are nested or disjoint, and then no other
  // order shares less.
  std::vector<int> spread() const {
    const std::vector<int> in_order = by_order();
    std::vector<std::vector<int>> choices;
    std::vector<int> turn, chosen(num_ranks_);
    bool all_near = true;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      choices.push_back(nearest(rank));
      turn.push_back(rank);
      all_near = all_near && std::count(choices[rank].begin(), choices[rank].end(), in_order[rank]) != 0;
    }
    std::stable_sort(turn.begin(), turn.end(), [&](int a, int b) { return choices[a].size() < choices[b].size(); });
    std::map<int, int> load;
    for (const int rank : turn) {
      // The NIC that leaves most to one more rank; the first of equals.
      const std::vector<int>& near = choices[rank];
      const auto room = [&](int nic) { return weight(nic, near) / (load[nic] + 1); };
      chosen[rank] = *std::max_element(near.begin(), near.end(), [&](int a, int b) { return room(a) < room(b); });
      ++load[chosen[rank]];
    }
    return all_near && least_share(in_order) >= least_share(chosen) ? in_order : chosen;
  }

  // What the NIC with least for each of its ranks gives them.
  double least_share(const std::vector<int>& chosen) const {
    double least = kMostGbitS;
    for (const int nic : chosen) {
      least = std::min(least, weight(nic, chosen) / static_cast<double>(std::count(chosen.begin(), chosen.end(), nic)));
    }
    return least;
  }

  // What bounds each rank's way: its own speed, and that of its PCIe links, divided among the ways over them.
  std::vector<double> pcie_bounds(const std::vector<int>& chosen) const {
    std::vector<double> bounds(num_ranks_, kMostGbitS);
    std::vector<Path> ways;
    std::map<const Place*, int> num_over;
    for (int rank = 0; rank < std::min(num_ranks_, num_gpus_); ++rank) {
      ways.push_back(between(machine_.path(rank), machine_.path(num_gpus_ + chosen[rank])));
      for (const Place* place : ways.back()) {
        ++num_over[place];
      }
    }
    for (size_t rank = 0; rank < ways.size(); ++rank) {
      bounds[rank] = link(static_cast<int>(rank), chosen[rank]).speed_gbit_s.value_or(kMostGbitS);
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
        slow += (slow.empty() ? "" : ", ") + (name.empty() ? machine_.id(num_gpus_ + nic) : name);
      }
    }
    if (!slow.empty()) {
      found.notes.push_back("no rail runs over " + slow + ": others are faster, or speak RDMA");
    }
    if (num_gpus_ == 0) {
      found.notes.emplace_back("no GPU: ranks take NICs by order");
    }
    if (std::any_of(found.rails.begin(), found.rails.end(), [](const Rail& rail) { return !rail.speed_gbit_s; })) {
      found.notes.emplace_back("the speed of a rail's NIC is unknown: measure it, or give it");
    }
  }

  const Machine& machine_;
  int num_ranks_;
  int num_gpus_;
  std::vector<int> nics_;
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
