// Units that are reduced with some of their parameters, and units that nobody holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "communicator/units/unit_table.h"
#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

constexpr int64_t kElements[] = {301, 301, 64, 1000, 7};  // of each parameter in a row

using Set = std::vector<int>;
const Set kAll = {0, 1, 2, 3, 4};
using Values = std::map<int, std::vector<double>>;  // by parameter

std::shared_ptr<const Sections> sections_of(const Set& set) {
  std::vector<Section> sections;
  for (const int parameter : set) {
    sections.push_back({parameter, kElements[parameter]});
  }
  return std::make_shared<Sections>(sections);
}

class Reduced {
 public:
  Reduced(const NodeMap& map, Collective collective, const Options& options = lossy_options())
      : world_(map, options), collective_(collective) {}

  // Reduces gradients of these parameters; of others zeros. Adds what was given and what arrived, summed over rows.
  void reduce(const Set& set, const Set& with_gradient, std::optional<Reason> why_exact = {}) {
    const std::shared_ptr<const Sections> sections = sections_of(set);
    const bool in_rows = collective_ == Collective::kReduceScatter;
    const int rows = in_rows ? world_.size() : 1;
    const std::shared_ptr<const Sections> all = sections_of(kAll);
    const UnitKey key{"unit", rows * all->row_elements(), kFloat32, collective_, all->hash()};
    std::vector<Array> inputs;
    for (int rank = 0; rank < world_.size(); ++rank) {
      std::vector<double> values;
      for (int row = 0; row < rows; ++row) {
        for (const int parameter : set) {
          const bool is_given = std::count(with_gradient.begin(), with_gradient.end(), parameter) > 0;
          for (int64_t i = 0; i < kElements[parameter]; ++i) {
            values.push_back(is_given ? normal_(random_) : 0);
          }
        }
      }
      inputs.emplace_back(values, kFloat32);
    }
    add(sum_of(inputs), set, given);
    arrived_now.clear();
    if (in_rows) {
      add(world_.reduce_scatter(inputs, {key, 1, why_exact, sections}), set, arrived_now);
    } else {
      const std::vector<Array> results = world_.all_reduce(inputs, {key, 1, why_exact, sections});
      expect_equal_bits(results);
      add(results[0].values(), set, arrived_now);
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
  static void add(const std::vector<double>& tensor, const Set& set, Values& values) {
    for (size_t begin = 0; begin < tensor.size();) {
      for (const int parameter : set) {
        std::vector<double>& sum = values[parameter];
        sum.resize(static_cast<size_t>(kElements[parameter]));
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

class UnitParameters : public ::testing::TestWithParam<Collective> {};

// What was held back waits for a step in which all have gradients, and nothing of it reaches another parameter.
TEST_P(UnitParameters, AResidualRestsWhereAParameterHasNoGradient) {
  for (const NodeMap& map : {NodeMap::parse("2x2", 4), NodeMap::parse("3x1", 3), NodeMap({0, 1, 0, 1})}) {
    Reduced unit(map, GetParam());
    unit.reduce(kAll, kAll);
    const double missing = unit.missing();
    const int64_t bytes = unit.residual_bytes();
    EXPECT_GT(missing, 0.1) << "nothing was held back: this shows nothing";
    unit.reduce({1}, {});
    EXPECT_EQ(unit.arrived_now[1], std::vector<double>(301)) << map.to_string();
    unit.reduce({0, 2, 4}, {0, 2, 4}, Reason::kNotPrepared);
    unit.reduce({0, 1, 3}, {0, 3});
    EXPECT_NEAR(unit.missing(), missing, 1e-4) << "they were exact";
    EXPECT_EQ(unit.residual_bytes(), bytes);
    const Stats stats = unit.world().ranks[0]->stats();
    EXPECT_EQ(stats.exact_calls.at(Reason::kResidualRests), 2);
    EXPECT_EQ(stats.exact_calls.at(Reason::kNotPrepared), 1);
    EXPECT_EQ(unit.world().ranks[0]->units().states().at(0).step, 1u) << "it counts what uses the residual";
    unit.reduce(kAll, {}, Reason::kNotPrepared);
    EXPECT_LT(unit.missing(), 1e-4) << map.to_string();
    EXPECT_EQ(unit.residual_bytes(), 0);
  }
}

// Packets say which parameters they are of, and each set of one size has its own.
TEST_P(UnitParameters, WithoutAResidualAllSetsAreCompressed) {
  const NodeMap map = NodeMap::parse("2x2", 4);
  Reduced unit(map, GetParam(), options_of_codec("quant"));
  for (const Set& set : {kAll, Set{0, 2}, Set{1, 2}, kAll}) {
    unit.reduce(set, set);
  }
  const Stats stats = unit.world().ranks[0]->stats();
  EXPECT_EQ(stats.compressed_calls, 4);
  EXPECT_EQ(stats.num_units, 1);
  EXPECT_EQ(unit.world().ranks[0]->units().states().at(0).step, 4u);
}

// Sizes do not tell them apart: the sum would be of different parameters, without a word.
TEST_P(UnitParameters, NodesThatReduceOtherParametersOfOneSizeAreTold) {
  for (const char* codec : {"quant", "none"}) {
    World world(NodeMap::parse("2x1", 2), options_of_codec(codec));
    const auto all = sections_of(kAll);
    const int rows = GetParam() == Collective::kReduceScatter ? 2 : 1;
    const UnitKey key{"unit", rows * all->row_elements(), kFloat32, GetParam(), all->hash()};
    const std::vector<Outcome> outcomes = run_ranks(2, [&](int rank) {
      const auto sections = sections_of({rank, 2});
      Array gradient(random_values(rows * sections->row_elements(), 3), kFloat32);
      const KeyedReduction reduction{key, 1, {}, sections};
      if (rows == 2) {
        const Buffer shard = gradient.buffer().part(rank, sections->row_elements());
        world.ranks[rank]->reduce_scatter(gradient.view(), shard, reduction);
      } else {
        world.ranks[rank]->all_reduce(gradient.buffer(), reduction);
      }
    });
    EXPECT_TRUE(outcomes[0].threw<PacketError>() || outcomes[1].threw<PacketError>()) << codec;
    for (const Outcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.threw<TransportError>() || outcome.text.find("packet with unit ") != std::string::npos)
          << outcome.text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, UnitParameters,
                         ::testing::Values(Collective::kReduceScatter, Collective::kAllReduce),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

TEST(Units, LiveAsLongAsSomebodyHoldsThem) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  const UnitKey key{"unit", 2000, kFloat32};
  world.reduce_scatter(random_arrays(2, 2000, kFloat32), 1, {});
  const std::weak_ptr<Unit> unit = world.ranks[0]->held(key);
  EXPECT_EQ(world.ranks[0]->stats().residual_bytes, 4 * 1000);
  world.ranks[0]->let_go();
  EXPECT_TRUE(unit.expired());
  EXPECT_TRUE(world.ranks[0]->units().states().empty());
  const Stats stats = world.ranks[0]->stats();
  EXPECT_EQ(stats.residual_bytes, 0);
  EXPECT_EQ(stats.num_units, 0);
  EXPECT_EQ(stats.dropped_residuals, 0) << "nobody wants it any more";
  EXPECT_EQ(stats.units.size(), 1u) << "what it did is still told";
}

TEST(Units, BelongToOneCommunicatorAndMayOutliveIt) {
  const UnitKey key{"unit", 2000, kFloat32};
  UnitPtr unit;
  {
    World world(NodeMap::parse("2x1", 2), lossy_options());
    world.reduce_scatter(random_arrays(2, 2000, kFloat32), 1, {});
    unit = world.ranks[0]->held(key);
  }
  World another(NodeMap::parse("2x1", 2), lossy_options());
  Communicator& communicator = *another.ranks[0];
  Array gradient(2000, kFloat32);
  EXPECT_EQ(error_of([&] { communicator.reduce_scatter(gradient.view(), gradient.buffer().part(0, 1000), {unit}); }),
            "unit \"unit\" belongs to another communicator");
}

// --- Those that nobody holds

TEST(UnitTable, AUnitThatWasNotAskedForForLongGivesUpItsPlace) {
  UnitTable table(2);
  const auto ask = [&](const std::string& name) { return table.find_or_add({name, 2000, kFloat32}); };
  const UnitPtr a = ask("a");
  const UnitPtr b = ask("b");
  EXPECT_EQ(ask("a"), a);
  EXPECT_EQ(ask("c"), nullptr) << "both were asked for a moment ago";
  EXPECT_EQ(ask("c"), nullptr);
  EXPECT_EQ(ask("c"), nullptr);
  const UnitPtr c = ask("c");
  EXPECT_NE(c, nullptr) << "b was asked for 5 questions ago";
  EXPECT_EQ(table.all(), (std::vector<UnitPtr>{a, c}));
  EXPECT_EQ(table.find({"b", 2000, kFloat32}), nullptr);
  EXPECT_NE(table.find({"a", 2000, kFloat32}), nullptr);
  EXPECT_EQ(error_of([&] {
              table.put(make_unit({"d", 1, kFloat32}));
            }),
            "unit \"d\": cannot load its state, since 2 units have one already (max_units)");
  const UnitPtr loaded = make_unit({"a", 2000, kFloat32});
  table.put(loaded);
  EXPECT_EQ(ask("a"), loaded);
}

TEST(UnitTable, TheResidualOfOneThatGivesWayCountsAsDropped) {
  World world(NodeMap::parse("2x1", 2), lossy_options());
  std::vector<UnitTable> tables(2, UnitTable(1));
  const auto reduce = [&](const std::string& name) {
    run_ranks_well(2, [&](int rank) {
      Array gradient(random_values(2000, 3), kFloat32);
      const UnitPtr unit = tables[rank].find_or_add({name, 2000, kFloat32});
      Communicator& communicator = *world.ranks[rank];
      communicator.reduce_scatter(gradient.view(), gradient.buffer().part(rank, 1000),
                                  {unit != nullptr ? unit : make_unit({name, 2000, kFloat32}, Reason::kTooManyUnits)});
    });
  };
  for (const char* name : {"a", "b", "b", "b"}) {
    reduce(name);
  }
  const Stats stats = world.ranks[0]->stats();
  EXPECT_EQ(stats.exact_calls, (std::map<Reason, int64_t>{{Reason::kTooManyUnits, 2}}));
  EXPECT_EQ(stats.dropped_residuals, 1);
  EXPECT_EQ(stats.num_units, 1);
}

}  // namespace
}  // namespace isthmus::test
