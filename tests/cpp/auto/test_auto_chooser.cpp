// What auto chooses from given measurements. No clock and no link: every case is a table.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "auto/chooser.h"
#include "tests/cpp/auto/candidates.h"

namespace isthmus {

void PrintTo(Candidate candidate, std::ostream* stream) { *stream << to_string(candidate); }  // NOLINT: gtest's name

namespace {

using test::named;
using test::quant;

constexpr double kGbit = 1e9 / 8;
constexpr int64_t kMebi = 1 << 20;

Options auto_options(double budget = 0) {
  Options options;
  options.codec = "auto";
  options.error_budget = budget;
  return options;
}

// Two nodes of two ranks on CPUs: shared memory inside, `inter_gbit` out of each node, and a world backend that sends
// everything three times, as Gloo does, at 1 GB/s at most.
Measurements measurements(double inter_gbit) {
  Measurements measured;
  measured.links.intra_reduce = {20e-6, 2e9};
  measured.links.intra_gather = {20e-6, 3e9};
  measured.links.inter = {100e-6, inter_gbit * kGbit / 2};
  measured.links.world_reduce = {200e-6, std::min(inter_gbit * kGbit / 3, 1e9)};
  measured.links.world_all_reduce = measured.links.world_reduce;
  measured.links.world_gather = measured.links.world_reduce;
  measured.codecs[Candidate::kNone] = {2e9, 2e9};
  for (const Candidate width : {quant(8), quant(4), quant(3), quant(2), quant(1)}) {
    measured.codecs[width] = {.6e9, 1e9};
  }
  measured.codecs[named("sparse")] = {.5e9, 3e9};
  measured.codecs[named("tagc")] = {.4e9, .6e9};
  return measured;
}

UnitFacts unit_of(int64_t num_elements, std::optional<Candidate> current = std::nullopt) {
  UnitFacts unit;
  unit.num_elements = num_elements;
  unit.num_nodes = 2;
  unit.ranks_per_node = 2;
  unit.current = current;
  return unit;
}

Candidate chosen(const Measurements& measured, const Options& options, UnitFacts unit = unit_of(4 * kMebi)) {
  return choose(measured, unit, options).candidate;
}

TEST(Chooser, CandidatesComeInTheOrderOfTheirErrors) {
  std::vector<std::string> labels;
  for (const Candidate candidate : candidates()) {
    labels.push_back(to_string(candidate));
  }
  const std::vector<std::string> expected = {"world",       "none",        "quant 8 bit", "quant 4 bit", "quant 3 bit",
                                             "quant 2 bit", "quant 1 bit", "sparse",      "tagc"};
  EXPECT_EQ(labels, expected);
}

TEST(Chooser, FollowsTheLink) {
  struct Case {
    double inter_gbit;
    Candidate expected;
  };
  const std::vector<Case> cases = {{.05, quant(4)}, {.2, quant(4)},          {1, quant(4)},
                                   {10, quant(4)},  {100, Candidate::kNone}, {1000, Candidate::kNone}};
  for (const auto& [inter_gbit, expected] : cases) {
    EXPECT_EQ(chosen(measurements(inter_gbit), auto_options()), expected)
        << inter_gbit << " Gbit/s: " << choose(measurements(inter_gbit), unit_of(4 * kMebi), auto_options()).reason;
  }
}

TEST(Chooser, TakesTheFewestBitsOfTheBudgetOnASlowLink) {
  struct Case {
    double budget;
    Candidate expected;
  };
  const std::vector<Case> cases = {{1e-6, Candidate::kNone}, {1e-4, quant(8)}, {.0115, quant(8)},
                                   {.012, quant(4)},         {.04, quant(3)},  {.14, quant(2)},
                                   {.6, quant(1)},           {.98, quant(1)},  {.99, named("sparse")}};
  for (const auto& [budget, expected] : cases) {
    EXPECT_EQ(chosen(measurements(.05), auto_options(budget)), expected) << budget;
  }
}

TEST(Chooser, TakesTheDefaultBudgetWhereNoneIsGiven) {
  EXPECT_EQ(error_budget(auto_options()), kDefaultErrorBudget);
  EXPECT_EQ(error_budget(auto_options(.5)), .5);
  EXPECT_LE(prior_error(quant(4), auto_options()), kDefaultErrorBudget);
  EXPECT_GT(prior_error(quant(3), auto_options()), kDefaultErrorBudget);
}

TEST(Chooser, MeasuredErrorsReplaceExpectedOnes) {
  Measurements measured = measurements(.05);
  measured.errors[quant(4)] = .021;
  EXPECT_EQ(chosen(measured, auto_options()), quant(8));
  measured.errors[quant(3)] = .0199;
  EXPECT_EQ(chosen(measured, auto_options()), quant(3));
}

TEST(Chooser, TakesTheWorldWhereItIsFaster) {
  Measurements measured = measurements(100);
  measured.links.world_reduce = {10e-6, 100e9};
  const Choice choice = choose(measured, unit_of(4 * kMebi), auto_options());
  EXPECT_EQ(choice.candidate, Candidate::kWorld);
  EXPECT_EQ(choice.settings.codec, "none");
  measured.links.world_reduce = {};
  EXPECT_EQ(chosen(measured, auto_options()), Candidate::kNone);
}

TEST(Chooser, LeavesTheTiersOnlyForAMuchFasterWorld) {
  Measurements measured = measurements(100);
  const double none_s = reduction_seconds(Candidate::kNone, measured, unit_of(4 * kMebi), auto_options(1e-6));
  const auto chosen_if_world_takes = [&](double seconds) {
    measured.links.world_reduce = {seconds, 1e30};
    return chosen(measured, auto_options(1e-6));
  };
  EXPECT_EQ(chosen_if_world_takes((1 - kWorthLeavingTiers) * none_s * 1.01), Candidate::kNone);
  EXPECT_EQ(chosen_if_world_takes((1 - kWorthLeavingTiers) * none_s * .99), Candidate::kWorld);
  EXPECT_EQ(chosen_if_world_takes(0), Candidate::kWorld);
  measured.hidden_s = 2 * none_s;
  EXPECT_EQ(chosen_if_world_takes(0), Candidate::kNone) << "nothing is seen of either";
}

TEST(Chooser, LeavesTheTiersNoSoonerWhereTheyCompress) {
  Measurements measured = measurements(1);
  const double lossy_s = reduction_seconds(quant(4), measured, unit_of(4 * kMebi), auto_options());
  const auto chosen_if_world_takes = [&](double seconds) {
    measured.links.world_reduce = {seconds, 1e30};
    return chosen(measured, auto_options());
  };
  const double bound_s = (1 - kWorthLeavingTiers) * lossy_s / (1 - kWorthLosing);
  EXPECT_EQ(chosen_if_world_takes(bound_s * 1.01), quant(4));
  EXPECT_EQ(chosen_if_world_takes(bound_s * .99), Candidate::kWorld);
}

TEST(Chooser, SmallUnitsGoWhereLatencyIsLeast) {
  Measurements measured = measurements(10);
  measured.links.world_reduce.latency_s = 10e-6;
  EXPECT_EQ(chosen(measured, auto_options(), unit_of(1024)), Candidate::kWorld);
  EXPECT_NE(chosen(measured, auto_options(), unit_of(16 * kMebi)), Candidate::kWorld);
}

// Of two things that are about as fast the more exact one, or the one in two tiers.
TEST(Chooser, LosesNoMoreThanItsThreshold) {
  std::set<Candidate> seen;
  for (double inter_gbit = .01; inter_gbit < 400; inter_gbit *= 1.07) {
    for (const int64_t num_elements : {int64_t{0}, int64_t{1}, int64_t{65536}, kMebi + 3, 64 * kMebi}) {
      for (const double times_faster_world : {1, 4, 16}) {
        Measurements measured = measurements(inter_gbit);
        measured.links.world_reduce.latency_s /= times_faster_world;
        measured.links.world_reduce.bytes_per_s *= times_faster_world;
        const UnitFacts unit = unit_of(num_elements);
        const Choice choice = choose(measured, unit, auto_options(1));
        seen.insert(choice.candidate);
        for (const Candidate other : candidates()) {
          const double other_s = reduction_seconds(other, measured, unit, auto_options(1));
          const bool both_lossy = !is_exact(choice.candidate) && !is_exact(other);
          const double threshold = other == Candidate::kWorld ? kWorthLeavingTiers
                                   : both_lossy               ? kWorthwhile
                                                              : kWorthLosing;
          EXPECT_GE(other_s, (1 - threshold) * choice.seconds) << choice.reason << " against " << to_string(other);
        }
        if (choice.candidate == Candidate::kWorld) {
          const double none_s = reduction_seconds(Candidate::kNone, measured, unit, auto_options(1));
          EXPECT_LT(choice.seconds, (1 - kWorthLeavingTiers) * none_s) << choice.reason;
        }
      }
    }
  }
  EXPECT_EQ(seen.count(Candidate::kWorld) + seen.count(Candidate::kNone) + seen.count(named("sparse")), 3U);
}

TEST(Chooser, CompressesNothingThatIsHiddenBehindCompute) {
  Measurements measured = measurements(.2);
  const UnitFacts unit = unit_of(4 * kMebi, Candidate::kNone);
  const double exact_s = reduction_seconds(Candidate::kNone, measured, unit, auto_options());
  measured.hidden_s = 2 * exact_s;
  const Choice hidden = choose(measured, unit, auto_options());
  EXPECT_EQ(hidden.candidate, Candidate::kNone);
  EXPECT_NE(hidden.reason.find("hidden behind compute"), std::string::npos) << hidden.reason;
  measured.hidden_s = .6 * exact_s;
  EXPECT_EQ(chosen(measured, auto_options(), unit), quant(8)) << "no fewer bits than make the rest disappear";
  measured.hidden_s = 0;
  EXPECT_EQ(chosen(measured, auto_options(), unit), quant(4));
}

TEST(Chooser, StaysWithWhatItHasUnlessAnotherIsClearlyFaster) {
  const auto gain = [&](double inter_gbit) {
    const Measurements measured = measurements(inter_gbit);
    const double exact_s = reduction_seconds(Candidate::kNone, measured, unit_of(4 * kMebi), auto_options());
    return 1 - reduction_seconds(quant(4), measured, unit_of(4 * kMebi), auto_options()) / exact_s;
  };
  double between = 10;  // a link where compression gains too little to begin with it
  while (gain(between) > kWorthLosing) {
    between *= 1.01;
  }
  ASSERT_GT(gain(between), 0);
  Measurements measured = measurements(between);
  measured.links.world_reduce = {};
  EXPECT_EQ(chosen(measured, auto_options()), Candidate::kNone);
  EXPECT_EQ(chosen(measured, auto_options(), unit_of(4 * kMebi, Candidate::kNone)), Candidate::kNone);
  EXPECT_EQ(chosen(measured, auto_options(), unit_of(4 * kMebi, quant(4))), quant(4));
}

TEST(Chooser, LeavesACodecThatBreaksTheBudgetAtOnce) {
  Measurements measured = measurements(10);
  measured.errors[quant(4)] = .5;
  EXPECT_NE(chosen(measured, auto_options(), unit_of(4 * kMebi, quant(4))), quant(4));
}

TEST(Chooser, OffersNoCodecOfUnknownSpeed) {
  Measurements measured = measurements(.05);
  measured.codecs[quant(4)] = {};
  EXPECT_EQ(chosen(measured, auto_options()), quant(8));
  measured.codecs = {};
  measured.codecs[Candidate::kNone] = {1e9, 1e9};
  const Choice choice = choose(measured, unit_of(4 * kMebi), auto_options());
  EXPECT_TRUE(is_exact(choice.candidate));
  EXPECT_NE(choice.reason.find("no codec's speed is known"), std::string::npos) << choice.reason;
}

TEST(Chooser, KnowsWhenItKnowsNothing) {
  const Choice choice = choose(Measurements(), unit_of(4 * kMebi), auto_options());
  EXPECT_EQ(choice.candidate, Candidate::kNone);
  EXPECT_EQ(choice.reason, "none: link speeds are not known");
}

TEST(Chooser, ExplainsItselfInOneLine) {
  const Choice lossy = choose(measurements(.2), unit_of(4 * kMebi), auto_options());
  EXPECT_EQ(lossy.reason,
            "quant 4 bit: 49.4 ms instead of 341 ms plain over 0.2 Gbit/s; expected error 0.0117 of budget 0.02");
  Measurements measured = measurements(.2);
  measured.errors[quant(4)] = .013;
  EXPECT_NE(choose(measured, unit_of(4 * kMebi), auto_options()).reason.find("; error 0.013 of budget 0.02"),
            std::string::npos);
  const Choice exact = choose(measurements(.2), unit_of(4 * kMebi), auto_options(1e-6));
  EXPECT_EQ(exact.reason,
            "none: 341 ms over 0.2 Gbit/s; no codec keeps to the error budget 1e-06 (quant 8 bit: expected error "
            "8.77e-05)");
  const Choice fast = choose(measurements(1000), unit_of(4 * kMebi), auto_options());
  EXPECT_EQ(fast.reason.substr(0, 6), "none: ");
  EXPECT_NE(fast.reason.find(" would take "), std::string::npos) << fast.reason;
}

TEST(Chooser, KeepsTheOtherOptions) {
  Options options = auto_options();
  options.group_elements = 64;
  options.rotate = false;
  options.dense_steps = 7;
  const Choice choice = choose(measurements(.05), unit_of(4 * kMebi), options);
  EXPECT_EQ(choice.settings.codec, "quant");
  EXPECT_EQ(choice.settings.bits, 4);
  options.codec = "quant";
  options.bits = 4;
  EXPECT_EQ(choice.settings.to_string(), options.to_string());
  EXPECT_NO_THROW(choice.settings.validate());
}

TEST(Chooser, ExpectsMoreErrorOfCoarserSettings) {
  Options rotated = auto_options();
  rotated.scale = "least_error";
  Options plain = rotated;
  plain.rotate = false;
  Options stochastic = rotated;
  stochastic.rounding = "stochastic";
  Options unbiased = rotated;
  unbiased.scale = "unbiased";
  double before = 0;
  for (const Candidate candidate : candidates()) {
    const double error = prior_error(candidate, rotated);
    EXPECT_TRUE(is_exact(candidate) ? error == 0 : error > 0) << to_string(candidate);
    EXPECT_GE(error, before) << to_string(candidate);
    before = error;
    if (candidate >= quant(8) && candidate <= quant(1)) {
      EXPECT_GT(prior_error(candidate, plain), error);
      EXPECT_GT(prior_error(candidate, stochastic), error);
      EXPECT_GT(prior_error(candidate, unbiased), error);
    }
  }
  EXPECT_NEAR(prior_error(quant(1), unbiased), 3.14159 / 2 - 1, 1e-3);  // as DRIVE's analysis has it
}

TEST(Chooser, AllReduceSendsItsResultToo) {
  UnitFacts unit = unit_of(4 * kMebi);
  const Measurements measured = measurements(.2);
  for (const Candidate candidate : {Candidate::kNone, quant(4), named("tagc")}) {
    unit.collective = Collective::kReduceScatter;
    const double scattered_s = reduction_seconds(candidate, measured, unit, auto_options());
    unit.collective = Collective::kAllReduce;
    EXPECT_GT(reduction_seconds(candidate, measured, unit, auto_options()), 1.5 * scattered_s) << to_string(candidate);
  }
}

TEST(Chooser, GathersGoToTheFasterOfTwoWays) {
  EXPECT_FALSE(world_gathers_faster(measurements(.2).links, kMebi, 2, 2));
  LinkSpeeds links = measurements(100).links;
  links.world_gather = {1e-6, 1e12};
  EXPECT_TRUE(world_gathers_faster(links, kMebi, 2, 2));
  links.world_gather = {};
  EXPECT_FALSE(world_gathers_faster(links, kMebi, 2, 2));
}

TEST(Chooser, GathersLeaveTheTiersOnlyForAMuchFasterWorld) {
  LinkSpeeds links;
  links.inter = {0, 1e9};
  links.intra_gather = {0, 2e9};
  constexpr int64_t kBytes = 4000000;  // in two tiers 1 ms over the link and 1 ms inside
  const auto is_faster_if_world_takes = [&](double seconds) {
    links.world_gather = {seconds, 1e30};
    return world_gathers_faster(links, kBytes, 2, 2);
  };
  EXPECT_FALSE(is_faster_if_world_takes((1 - kWorthLeavingTiers) * 2e-3 * 1.01));
  EXPECT_TRUE(is_faster_if_world_takes((1 - kWorthLeavingTiers) * 2e-3 * .99));
  links.intra_gather = {};
  EXPECT_FALSE(is_faster_if_world_takes(0)) << "the tier inside is unknown";
}

TEST(Chooser, OneRankANodeHasNoTierInside) {
  Measurements measured = measurements(.2);
  measured.links.intra_reduce = {};
  measured.links.intra_gather = {};
  UnitFacts unit = unit_of(4 * kMebi);
  EXPECT_EQ(choose(measured, unit, auto_options()).candidate, Candidate::kWorld) << "the tier inside is unknown";
  unit.ranks_per_node = 1;
  EXPECT_EQ(choose(measured, unit, auto_options()).candidate, quant(4));
}

TEST(ChooseWidth, TakesTheFewestBitsThatKeepToTheBudget) {
  Options options;
  options.codec = "quant";
  options.bits = 0;
  const auto bits = [&options](double budget, const ByCandidate<std::optional<double>>& errors = {}) {
    options.error_budget = budget;
    const Choice choice = choose_width(errors, options);
    return choice.settings.codec == "quant" ? choice.settings.bits : 0;
  };
  EXPECT_EQ(bits(0), 4);  // the default budget
  EXPECT_EQ(bits(1e-6), 0);
  EXPECT_EQ(bits(1e-4), 8);
  EXPECT_EQ(bits(.04), 3);
  EXPECT_EQ(bits(.14), 2);
  EXPECT_EQ(bits(1), 1);
  ByCandidate<std::optional<double>> errors;
  errors[quant(4)] = .05;
  EXPECT_EQ(bits(.02, errors), 8);
  errors[quant(8)] = .05;
  EXPECT_EQ(bits(.02, errors), 0);
  EXPECT_EQ(choose_width(errors, options).reason, "none: no width keeps to the error budget 0.02 (quant 8 bit: 0.05)");
  errors[quant(2)] = .01;  // odd, but measured
  EXPECT_EQ(bits(.02, errors), 2);
}

}  // namespace
}  // namespace isthmus
