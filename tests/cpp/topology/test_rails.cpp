// Which NIC each rank uses, and what it gets there.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "machines.h"

namespace isthmus::topology {
namespace {

using Matrix = std::vector<std::vector<std::string>>;
using Speeds = std::vector<std::optional<double>>;
const Matrix kOwn = {{"PIX", "SYS"}, {"SYS", "PIX"}};
const Matrix kFar = {{"SYS", "SYS"}, {"SYS", "SYS"}};

// A machine whose GPU g and NIC n are `matrix[g][n]` apart, over PCIe of that speed.
Machine machine(const Matrix& matrix, Speeds speeds = {}, std::optional<double> pcie = {},
                const std::string& kind = "roce") {
  Machine made;
  made.name = "made up";
  const int num_gpus = static_cast<int>(matrix.size());
  speeds = speeds.empty() ? Speeds(matrix[0].size(), 100) : speeds;
  for (int gpu = 0; gpu < num_gpus; ++gpu) {
    made.gpus.emplace_back().index = gpu;
  }
  for (int nic = 0; nic < static_cast<int>(speeds.size()); ++nic) {
    Nic& one = made.nics.emplace_back();
    one.index = nic;
    one.name = "mlx5_" + std::to_string(nic);
    one.kind = kind;
    one.speed_gbit_s = speeds[nic];
  }
  const int size = made.num_devices();
  made.links.resize(static_cast<size_t>(size) * size);
  for (int gpu = 0; gpu < num_gpus; ++gpu) {
    for (int nic = 0; nic < static_cast<int>(speeds.size()); ++nic) {
      made.links[gpu * size + num_gpus + nic] = {matrix[gpu][nic], pcie};
    }
  }
  return made;
}

std::vector<int> nics(const Rails& rails) {
  std::vector<int> found;
  for (const Rail& rail : rails.rails) {
    found.push_back(rail.nics[0]);
  }
  return found;
}

// What the slowest rail has; 0: one is unknown.
double slowest(const Rails& rails) {
  double least = rails.rails.empty() ? 0 : 1e9;
  for (const Rail& rail : rails.rails) {
    least = std::min(least, rail.speed_gbit_s.value_or(0));
  }
  return least;
}

TEST(Rails, TheNearestNics) {
  const auto expect = [](const Machine& made, const std::vector<int>& expected, double gbit_s) {
    const Rails rails = find_rails(made);
    EXPECT_EQ(nics(rails), expected);
    EXPECT_DOUBLE_EQ(slowest(rails), gbit_s);
    EXPECT_EQ(noted(rails.notes, "unknown"), gbit_s == 0);
    for (const Rail& rail : rails.rails) {
      EXPECT_EQ(rail.num_sharing, std::count(expected.begin(), expected.end(), rail.nics[0]));
    }
  };
  expect(machine(kOwn), {0, 1}, 100);
  expect(machine({{"SYS", "PIX"}, {"PIX", "SYS"}}), {1, 0}, 100);
  expect(machine({{"PIX", "PIX"}, {"PIX", "SYS"}}), {1, 0}, 100);  // GPU1 has one choice, so GPU0 leaves it NIC0
  // Of fewer NICs equal ones take turns, and ranks share their speed.
  expect(machine({{"PIX", "SYS"}, {"PIX", "SYS"}, {"SYS", "PIX"}, {"SYS", "PIX"}}), {0, 0, 1, 1}, 50);
  expect(machine(Matrix(8, {"PHB", "PHB", "PHB"})), {0, 1, 2, 0, 1, 2, 0, 1}, 100. / 3);
  // A faster NIC takes more ranks; the slowest rail counts; PCIe bounds a rail.
  expect(machine(Matrix(3, {"PHB", "PHB"}), {100, 200}), {1, 0, 1}, 100);
  expect(machine(kOwn, {200, 100}), {0, 1}, 100);
  expect(machine({{"PIX"}}, {400}, 252), {0}, 252);
  expect(machine(kOwn, {100, std::nullopt}, 100), {0, 1}, 0);  // what is unknown stays so
}

// A place of a made-up tree: its devices, and what hangs from it.
struct Tree {
  std::string kind;
  std::optional<double> speed;
  std::vector<int> devices;
  std::vector<Tree> below;
};
const std::vector<Tree> kGpus = {{"gpu", 252, {0}, {}}, {"gpu", 252, {1}, {}}};
const std::vector<Tree> kNics = {{"nic", 252, {0}, {}}, {"nic", 252, {1}, {}}};

void add(const Tree& tree, int above, Machine& made) {
  const int place = made.add({tree.kind, "", above, tree.speed, {}});
  for (const int device : tree.devices) {
    (tree.kind == "gpu" ? made.gpus[device].place : made.nics[device].place) = place;
  }
  for (const Tree& one : tree.below) {
    add(one, place, made);
  }
}

Machine with_trees(const Matrix& matrix, const std::vector<Tree>& trees) {
  Machine made = machine(matrix, {200, 200});
  for (const Tree& tree : trees) {
    add({"host bridge", {}, {}, {tree}}, -1, made);
  }
  return made;
}

TEST(Rails, RanksDivideAPcieLinkThatTheyShare) {
  // Two GPUs below one switch, two NICs below another, each switch with such a link to its host bridge.
  for (const auto& [uplink, expected] :
       {std::pair(std::optional(252.), 126.), {1000., 200.}, {100., 50.}, {std::nullopt, 200.}}) {
    const Machine made = with_trees(kFar, {{"switch", uplink, {}, kGpus}, {"switch", uplink, {}, kNics}});
    EXPECT_EQ(slowest(find_rails(made)), expected);
    EXPECT_EQ(slowest(find_rails(made, 1)), std::min(252., uplink.value_or(252)));  // of both NICs
  }
  // Ports of one adapter divide its link.
  EXPECT_EQ(slowest(find_rails(with_trees(kFar, {kGpus[0], kGpus[1], {"nic", 252, {0, 1}, {}}}))), 126);
  // One chip may present itself as several switches: links between them do not count.
  std::vector<Tree> chip = kGpus;
  chip.push_back({"switch", 252, {}, kNics});
  EXPECT_EQ(slowest(find_rails(with_trees({{"PXB", "PXB"}, {"PXB", "PXB"}}, {{"switch", 10, {}, chip}}))), 200);
}

TEST(Rails, ManagementNicsCarryNone) {
  const Machine slow = machine({{"PIX", "NODE", "NODE"}}, {1, 100, 50});
  EXPECT_EQ(rail_nics(slow), (std::vector{1, 2}));  // half as fast is enough
  EXPECT_EQ(nics(find_rails(slow)), std::vector{1});
  EXPECT_TRUE(noted(find_rails(slow).notes, "no rail runs over mlx5_0"));
  Machine mixed = machine({{"PIX", "NODE", "NODE"}});
  mixed.nics[0].kind = "ethernet";
  mixed.nics[2].kind = "unknown";
  EXPECT_EQ(rail_nics(mixed), (std::vector{1, 2}));
  EXPECT_EQ(rail_nics(machine({{"PIX", "NODE", "NODE"}}, {}, {}, "ethernet")).size(), 3);
}

TEST(Rails, WithoutGpusOrNics) {
  const Rails rails = find_rails(machine({}, {25, 25}), 4);
  EXPECT_EQ(nics(rails), (std::vector{0, 1, 0, 1}));
  EXPECT_EQ(rails.rails[0].gpu, -1);
  EXPECT_EQ(slowest(rails), 12.5);
  EXPECT_EQ(find_rails(machine({}, {25})).rails.size(), 1);
  Machine bare;
  bare.name = "bare";
  EXPECT_TRUE(find_rails(bare).rails.empty());
  EXPECT_TRUE(noted(find_rails(bare).notes, "bare has no NIC"));
}

TEST(Rails, ANumberOfRanksOutOfRange) {
  for (const int ranks : {0, -1, 3}) {
    try {
      find_rails(machine(kOwn), ranks);
      ADD_FAILURE() << ranks;
    } catch (const TopologyError& error) {
      EXPECT_EQ(error.what(), std::to_string(ranks) + " ranks a node: expected 1 to 2, one a GPU");
    }
  }
}

// The least number of ranks on the busiest NIC, by trying everything.
int least_sharing(const std::vector<std::vector<int>>& choices, size_t rank, std::map<int, int> load) {
  if (rank == choices.size()) {
    int most = 0;
    for (const auto& [nic, ranks] : load) {
      most = std::max(most, ranks);
    }
    return most;
  }
  int least = 100;
  for (const int nic : choices[rank]) {
    std::map<int, int> with = load;
    ++with[nic];
    least = std::min(least, least_sharing(choices, rank + 1, with));
  }
  return least;
}

TEST(Rails, SpreadingSharesAsLittleAsPossible) {
  // On random trees of one level of switches in two sockets.
  std::mt19937 draw(5);
  for (int turn = 0; turn < 60; ++turn) {
    std::vector<int> switch_of_gpu(1 + draw() % 5), switch_of_nic(1 + draw() % 4);
    for (std::vector<int>* switches : {&switch_of_gpu, &switch_of_nic}) {
      std::generate(switches->begin(), switches->end(), [&] { return static_cast<int>(draw() % 4); });
    }
    Matrix matrix;
    std::vector<std::vector<int>> choices;
    for (const int a : switch_of_gpu) {
      matrix.emplace_back();
      for (const int b : switch_of_nic) {
        matrix.back().push_back(a == b ? "PIX" : a / 2 == b / 2 ? "NODE" : "SYS");
      }
      choices.emplace_back();
      for (const char* nearest : {"PIX", "NODE", "SYS"}) {
        for (int nic = 0; choices.back().empty() && nic < static_cast<int>(switch_of_nic.size()); ++nic) {
          for (int each = 0; each < static_cast<int>(switch_of_nic.size()) && matrix.back()[nic] == nearest; ++each) {
            if (matrix.back()[each] == nearest) {
              choices.back().push_back(each);
            }
          }
        }
      }
    }
    const Rails rails = find_rails(machine(matrix));
    int most = 0;
    for (const Rail& rail : rails.rails) {
      const auto& allowed = choices[rail.local_index];
      EXPECT_NE(std::count(allowed.begin(), allowed.end(), rail.nics[0]), 0);
      most = std::max(most, rail.num_sharing);
    }
    EXPECT_EQ(most, least_sharing(choices, 0, {}));
  }
}

}  // namespace
}  // namespace isthmus::topology
