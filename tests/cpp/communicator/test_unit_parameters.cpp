// Units that are reduced with some of their parameters, by turns: residuals belong to parameters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

constexpr int64_t kElements[] = {301, 301, 64, 1000, 7};  // of each parameter in a row

using Set = std::vector<int>;
using Values = std::map<int, std::vector<double>>;  // by parameter

std::shared_ptr<const Sections> sections_of(const Set& set) {
  std::vector<Section> sections;
  for (const int parameter : set) {
    sections.push_back({parameter, kElements[parameter]});
  }
  return std::make_shared<Sections>(std::move(sections));
}

class Unit {
 public:
  Unit(const NodeMap& map, Collective collective, const Options& options = lossy_options())
      : world_(map, options), collective_(collective) {}

  // Reduces gradients of these parameters; of others zeros. Adds what was given and what arrived, summed over rows.
  void reduce(const Set& set, const Set& with_gradient, std::optional<Reason> why_exact = {}) {
    const std::shared_ptr<const Sections> sections = sections_of(set);
    const bool in_rows = collective_ == Collective::kReduceScatter;
    const int rows = in_rows ? world_.size() : 1;
    UnitKey key{"unit", rows * sections->row_elements(), kFloat32, collective_, sections->hash()};
    key.sections = sections;
    std::vector<Array> inputs;
    for (int rank = 0; rank < world_.size(); ++rank) {
      std::vector<double> values;
      for (int row = 0; row < rows; ++row) {
        for (const Section& section : sections->all()) {
          const bool is_given = std::count(with_gradient.begin(), with_gradient.end(), section.parameter) > 0;
          for (int64_t i = 0; i < section.num_elements; ++i) {
            values.push_back(is_given ? normal_(random_) : 0);
          }
        }
      }
      inputs.emplace_back(values, kFloat32);
    }
    add(sum_of(inputs), *sections, given);
    arrived_now.clear();
    if (in_rows) {
      add(world_.reduce_scatter(inputs, {key, 1, why_exact}), *sections, arrived_now);
    } else {
      const std::vector<Array> results = world_.all_reduce(inputs, {key, 1, why_exact});
      expect_equal_bits(results);
      add(results[0].values(), *sections, arrived_now);
    }
    for (const auto& [parameter, values] : arrived_now) {
      std::vector<double>& sum = arrived[parameter];
      sum.resize(values.size());
      std::transform(values.begin(), values.end(), sum.begin(), sum.begin(), std::plus<>());
    }
  }

  // The largest difference of an element of what was given and what has arrived.
  double missing() const {
    double most = 0;
    for (const auto& [parameter, values] : given) {
      for (size_t i = 0; i < values.size(); ++i) {
        most = std::max(most, std::fabs(values[i] - arrived.at(parameter)[i]));
      }
    }
    return most;
  }
  int64_t residual_bytes() const { return world_.ranks[0]->stats().residual_bytes; }
  World& world() { return world_; }

  Values given;
  Values arrived;
  Values arrived_now;

 private:
  // Adds the rows of a tensor.
  static void add(const std::vector<double>& tensor, const Sections& sections, Values& values) {
    for (size_t begin = 0; begin < tensor.size();) {
      for (const Section& section : sections.all()) {
        std::vector<double>& sum = values[static_cast<int>(section.parameter)];
        sum.resize(static_cast<size_t>(section.num_elements));
        for (double& element : sum) {
          element += tensor[begin++];
        }
      }
    }
  }

  World world_;
  Collective collective_;
  std::mt19937 random_{7};
  std::normal_distribution<double> normal_;
};

const Set kAll = {0, 1, 2, 3, 4};

class UnitParameters : public ::testing::TestWithParam<Collective> {};

// Two parameters of one size take turns: the one whose gradient is zero gets nothing of the other's.
TEST_P(UnitParameters, AResidualReachesItsOwnParameter) {
  for (const NodeMap& map : {NodeMap::parse("2x2", 4), NodeMap::parse("3x1", 3), NodeMap({0, 1, 0, 1})}) {
    Unit unit(map, GetParam());
    unit.reduce({0}, {0});
    for (int step = 0; step < 3; ++step) {
      unit.reduce({1}, {});
      EXPECT_EQ(unit.arrived_now[1], std::vector<double>(301)) << map.to_string();
    }
    EXPECT_GT(unit.missing(), 0.1) << "nothing was held back: this shows nothing";
    unit.reduce({0}, {}, Reason::kNotPrepared);
    EXPECT_LT(unit.missing(), 1e-5) << map.to_string();
  }
}

TEST_P(UnitParameters, SetsShareWhatIsLeftOfTheirParameters) {
  for (const NodeMap& map : {NodeMap::parse("2x2", 4), NodeMap::parse("3x1", 3), NodeMap({0, 1, 0, 1})}) {
    Unit unit(map, GetParam());
    unit.reduce(kAll, kAll);
    const int64_t of_all = unit.residual_bytes();
    std::mt19937 random(3);
    for (int step = 0; step < 40; ++step) {
      Set set;
      for (const int parameter : kAll) {
        if (random() % 2 == 0) {
          set.push_back(parameter);
        }
      }
      if (!set.empty()) {
        unit.reduce(set, set);
      }
      EXPECT_LE(unit.residual_bytes(), GetParam() == Collective::kReduceScatter ? of_all : 4 * of_all);
    }
    EXPECT_EQ(unit.world().ranks[0]->stats().num_units, 1);
    EXPECT_GT(unit.missing(), 0.1);
    // An all-reduce's elements have other owners in other sets: only the set that left them there sends all of them.
    if (GetParam() == Collective::kReduceScatter) {
      unit.reduce(kAll, {}, Reason::kNotPrepared);
      EXPECT_LT(unit.missing(), 1e-4) << map.to_string();
      EXPECT_EQ(unit.residual_bytes(), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, UnitParameters,
                         ::testing::Values(Collective::kReduceScatter, Collective::kAllReduce),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

// Where the table is full, a unit that was not reduced for long gives up its place, and what is gone keeps no memory.
TEST(Units, GiveUpTheirPlaceInTheOrderOfReductions) {
  Options options = lossy_options();
  options.max_units = 2;
  World world(NodeMap::parse("2x1", 2), options);
  const auto reduce = [&](const std::string& unit, int times) {
    for (int i = 0; i < times; ++i) {
      world.reduce_scatter(random_arrays(2, 2000, kFloat32), 1, {}, unit);
    }
  };
  reduce("a", 1);
  reduce("b", 1);
  reduce("c", 3);
  const auto above = [&] { return world.ranks[0]->stats().exact_calls[Reason::kTooManyUnits]; };
  EXPECT_EQ(above(), 3) << "they were reduced less than 2 max_units reductions ago";
  reduce("c", 2);
  EXPECT_EQ(above(), 3 + 0) << "a was not";
  EXPECT_EQ(world.ranks[0]->stats().num_units, 2);
  EXPECT_EQ(world.ranks[1]->stats().dropped_residuals, 1);
  for (const auto& rank : world.ranks) {
    std::vector<std::string> names;
    for (const UnitState& state : rank->units().states()) {
      names.push_back(state.key.name);
    }
    EXPECT_EQ(names, (std::vector<std::string>{"b", "c"}));
  }
}

// Ranks learn at different times that an owner is gone, and must decide alike.
TEST(Units, ThoseThatAllRanksHaveForgottenMakeRoomAtOnce) {
  Options options = lossy_options();
  options.max_units = 2;
  for (const char* const map : {"2x2", "0,2|1,3"}) {
    World world(NodeMap::parse(map, 4), options);
    const auto reduce = [&](const std::string& name, uint64_t owner) {
      world.reduce_scatter(random_arrays(4, 2000, kFloat32), {{.name = name, .num_elements = 2000, .owner = owner}});
    };
    const auto expect = [&](int64_t compressed, int64_t exact, int64_t num_units) {
      for (const auto& rank : world.ranks) {
        const Stats stats = rank->stats();
        EXPECT_EQ(stats.compressed_calls, compressed);
        EXPECT_EQ(stats.exact_calls.contains(Reason::kTooManyUnits), exact > 0);
        EXPECT_EQ(exact > 0 ? stats.exact_calls.at(Reason::kTooManyUnits) : 0, exact);
        EXPECT_EQ(stats.num_units, num_units);
      }
    };
    reduce("a", 1);
    reduce("b", 2);
    world.on_units([](UnitStates& units) { units.forget({1}); });
    reduce("c", 3);
    expect(3, 0, 2);
    for (const int rank : {0, 1, 2}) {
      world.ranks[rank]->units().forget({2, 3});
    }
    reduce("d", 4);
    expect(3, 1, 2);
    reduce("b", 2);
    expect(4, 1, 2);
  }
}

TEST(Units, OwnersAreScaledClearedAndForgottenByThemselves) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  const auto reduce = [&](const std::string& name, uint64_t owner) {
    world.reduce_scatter(random_arrays(2, 2000, kFloat32), {{.name = name, .num_elements = 2000, .owner = owner}});
  };
  UnitStates& units = world.ranks[0]->units();
  const auto values_of = [&](size_t index) {
    const ConstBuffer residual = units.states().at(index).residual;
    return std::vector<float>(residual.as<float>(), residual.as<float>() + residual.num_elements);
  };
  reduce("a", 1);
  reduce("b", 2);
  const std::vector<float> a = values_of(0);
  const std::vector<float> b = values_of(1);
  units.scale_residuals(2, Owners{{2}});
  EXPECT_EQ(values_of(0), a);
  EXPECT_NE(values_of(1), b);
  // The same owner under another name: its residual goes along.
  reduce("c", 2);
  EXPECT_EQ(world.ranks[0]->stats().num_units, 2);
  units.forget({2});
  EXPECT_EQ(world.ranks[0]->stats().residual_bytes, 4 * 1000);
  EXPECT_EQ(units.states().at(1).residual.num_elements, 0);
  units.clear(Owners{{1}});
  EXPECT_EQ(world.ranks[0]->stats().residual_bytes, 0);
  EXPECT_EQ(units.states().size(), 1u);
}

}  // namespace
}  // namespace isthmus::test
