#include "communicator/plan/codec_chooser.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "auto/agreement.h"
#include "auto/probe.h"
#include "communicator/units/unit_table.h"

namespace isthmus {
namespace {

// Links are probed again if a unit's reductions take longer or shorter than before by this factor.
constexpr double kLinkChanged = 1.5;
// The share of a reduction that callers wait for even if it was done before they asked.
constexpr double kSeen = .05;

bool far_apart(double a, double b) { return a > kLinkChanged * b || b > kLinkChanged * a; }

}  // namespace

bool CodecChooser::chooses() const {
  return options_.codec == "auto" || (options_.codec == "quant" && options_.bits == 0);
}

Measurements CodecChooser::measure(DataType dtype) {
  if (!group_.links) {
    phase_ = "probe of links";
    group_.links = probe_tiers(tiers_.tiers(), device_, dtype, options_);
  }
  const auto [codecs, is_new] = group_.codecs.try_emplace(dtype);
  if (is_new) {
    phase_ = "probe of codecs";
    codecs->second =
        probe_codecs(device_, dtype, tiers_.ranks_per_node(), options_,
                     [this](std::vector<double>& values) { max_over_tiers(tiers_.tiers(), device_, values); });
  }
  Measurements measured;
  measured.links = *group_.links;
  measured.codecs = codecs->second;
  return measured;
}

const Options& CodecChooser::wanted_settings(Unit& unit, const UnitKey& key, Stream tail) {
  if (!chooses()) {
    return options_;
  }
  const std::string before = unit.choice == nullptr ? "" : unit.choice->choice.settings.codec_settings();
  choose_for(unit, key, tail);
  const Options& wanted = unit.choice->choice.settings;
  if (wanted.codec_settings() != before) {
    unit.stage.reset();
  }
  return wanted;
}

void CodecChooser::choose_for(Unit& unit, const UnitKey& key, Stream tail) {
  const auto interval = static_cast<uint64_t>(options_.error_interval);
  const bool is_first = unit.choice == nullptr;
  const bool is_due = interval > 0 && unit.step % interval == 1 % interval;  // the one before was measured
  if (!is_first && (!is_due || device_.capture(tail) != 0)) {
    return;
  }
  if (is_first) {
    unit.choice = std::make_shared<UnitChoice>();
  } else {
    exchange_measurements(unit);
  }
  UnitChoice& own = *unit.choice;
  if (options_.codec == "quant") {
    own.choice = choose_width(own.errors, options_);
    return;
  }
  Measurements measured = measure(key.dtype);
  measured.errors = own.errors;
  measured.hidden_s = own.hidden_s;
  UnitFacts facts{key.num_elements,        key.dtype,   key.collective, tiers_.num_nodes(),
                  tiers_.ranks_per_node(), std::nullopt};
  if (!is_first) {
    facts.current = own.choice.candidate;
  }
  own.choice = choose(measured, facts, options_);
}

// Measurements of the unit since the last decision, over all ranks.
void CodecChooser::exchange_measurements(Unit& unit) {
  phase_ = "exchange of measurements";
  UnitChoice& own = *unit.choice;
  constexpr double kUnknown = -1;
  const auto exposed = exposed_share_ ? exposed_share_(unit.hash) : std::nullopt;
  std::vector<double> largest = {-own.least_seconds, exposed.value_or(kUnknown)};
  max_over_tiers(tiers_.tiers(), device_, largest);  // on a GPU, the errors are known from here on
  const double least_seconds = -largest[0];          // the rank that came last waited for nobody
  own.least_seconds = UnitChoice::kUnknownSeconds;
  std::vector<double> squares = {unit.error->given - own.given_squares, unit.error->dropped - own.dropped_squares};
  own.given_squares += squares[0];
  own.dropped_squares += squares[1];
  sum_over_tiers(tiers_.tiers(), device_, squares);
  const bool is_of_choice = unit.settings.codec_settings() == own.choice.settings.codec_settings();
  if (is_of_choice && squares[0] > 0 && std::isfinite(squares[1] / squares[0])) {
    own.errors[own.choice.candidate] = squares[1] / squares[0];
  }
  if (is_of_choice && largest[1] >= 0) {
    follow_exposure(own, std::min(largest[1], 1.0));
  }
  if (options_.codec == "auto" && is_of_choice && std::isfinite(least_seconds)) {
    watch_links(own, least_seconds / own.choice.seconds);
  }
}

void CodecChooser::observe(const ReductionPlan& plan, const CollectiveStats& counters) {
  const double seconds = counters.intra_s + counters.exchange_s + counters.encode_s + counters.decode_s;
  if (plan.unit != nullptr && plan.unit->choice != nullptr && seconds > 0) {
    UnitChoice& choice = *plan.unit->choice;
    choice.least_seconds = std::min(choice.least_seconds, seconds);
  }
}

// A codec that is not seen may be needless: then the exact exchange is tried once, which shows how much hides.
void CodecChooser::follow_exposure(UnitChoice& unit, double exposed_share) {
  if (exposed_share > kSeen) {
    unit.hidden_s = (1 - exposed_share) * unit.choice.seconds;
    unit.hidden_is_known = true;
  } else if (!unit.hidden_is_known) {
    unit.hidden_s = std::numeric_limits<double>::infinity();
  }
}

void CodecChooser::watch_links(UnitChoice& unit, double seconds_over_model) {
  if (unit.seconds_over_model == 0) {
    unit.seconds_over_model = seconds_over_model;
  } else if (far_apart(seconds_over_model, unit.seconds_over_model)) {
    unit.seconds_over_model = 0;
    group_.links.reset();
  }
}

}  // namespace isthmus
