// Codec auto, and quant with bits=0: measures links and codecs when the first unit asks, chooses for each unit, and
// decides anew every error_interval reductions of it. All of that is the same on all ranks. See docs/auto.md.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "auto/probe.h"
#include "auto/unit_choice.h"
#include "communicator/step.h"
#include "communicator/units/unit_table.h"
#include "isthmus/communicator.h"

namespace isthmus {
namespace {

// Links are probed again where a unit's reductions take so many times longer, or shorter, than they used to.
constexpr double kLinkChanged = 1.5;
// The share of a reduction that callers wait for even if it was done before they asked.
constexpr double kSeen = .05;

bool far_apart(double a, double b) { return a > kLinkChanged * b || b > kLinkChanged * a; }

}  // namespace

bool Communicator::chooses() const {
  return options_.codec == "auto" || (options_.codec == "quant" && options_.bits == 0);
}

Measurements Communicator::measure(DataType dtype) {
  if (group_measurements_ == nullptr) {
    group_measurements_ = std::make_unique<GroupMeasurements>();
  }
  GroupMeasurements& group = *group_measurements_;
  if (!group.links) {
    phase_ = "probe of links";
    group.links = probe_tiers(tiers_, *device_, dtype, options_);
  }
  const auto [codecs, is_new] = group.codecs.try_emplace(dtype);
  if (is_new) {
    phase_ = "probe of codecs";
    codecs->second = probe_codecs(*device_, dtype, ranks_per_node(), options_,
                                  [this](std::vector<double>& values) { max_over_tiers(tiers_, *device_, values); });
  }
  Measurements measured;
  measured.links = *group.links;
  measured.codecs = codecs->second;
  return measured;
}

// What the unit's reductions are made with, its stage apart, from the one on that comes now.
const Options& Communicator::wanted_settings(Unit& unit, const UnitKey& key) {
  if (!chooses()) {
    return options_;
  }
  const std::string before = unit.choice == nullptr ? "" : unit.choice->choice.settings.codec_settings();
  choose_for(unit, key);
  const Options& wanted = unit.choice->choice.settings;
  if (wanted.codec_settings() != before) {
    unit.stage.reset();
  }
  return wanted;
}

// All ranks come here at the same reduction of the unit, and send something where it is due.
void Communicator::choose_for(Unit& unit, const UnitKey& key) {
  const auto interval = static_cast<uint64_t>(options_.error_interval);
  const bool is_first = unit.choice == nullptr;
  const bool is_due = interval > 0 && unit.step % interval == 1 % interval;  // the one before was measured
  if (!is_first && (!is_due || device_->capture(here_) != 0)) {
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
  UnitFacts facts{key.num_elements, key.dtype, key.collective, num_nodes(), ranks_per_node(), std::nullopt};
  if (!is_first) {
    facts.current = own.choice.candidate;
  }
  own.choice = choose(measured, facts, options_);
}

// What was measured of the unit since the last decision, over all ranks.
void Communicator::exchange_measurements(Unit& unit) {
  phase_ = "exchange of measurements";
  UnitChoice& own = *unit.choice;
  constexpr double kUnknown = -1;
  const auto exposed = exposed_share_ ? exposed_share_(unit.hash) : std::nullopt;
  std::vector<double> largest = {-own.least_seconds, exposed.value_or(kUnknown)};
  max_over_tiers(tiers_, *device_, largest);  // on a GPU, the errors are known from here on
  const double least_seconds = -largest[0];   // the rank that came last waited for nobody
  own.least_seconds = UnitChoice::kUnknownSeconds;
  std::vector<double> squares = {unit.error->given - own.given_squares, unit.error->dropped - own.dropped_squares};
  own.given_squares += squares[0];
  own.dropped_squares += squares[1];
  sum_over_tiers(tiers_, *device_, squares);
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

// Of the reduction that is done.
std::string Communicator::reason_of_codec() const {
  if (current_unit_.choice != nullptr && (current_reason_ == nullptr || current_reason_ == kChosenExact)) {
    return current_unit_.choice->choice.reason;
  }
  return current_reason_ == nullptr ? "" : current_reason_;
}

void Communicator::add_to_choice() const {
  const double seconds = current_.intra_s + current_.exchange_s + current_.encode_s + current_.decode_s;
  if (current_unit_.choice != nullptr && seconds > 0) {
    current_unit_.choice->least_seconds = std::min(current_unit_.choice->least_seconds, seconds);
  }
}

// A codec that is not seen may be needless: then the exact exchange is tried once, which shows how much hides.
void Communicator::follow_exposure(UnitChoice& unit, double exposed_share) {
  if (exposed_share > kSeen) {
    unit.hidden_s = (1 - exposed_share) * unit.choice.seconds;
    unit.hidden_is_known = true;
  } else if (!unit.hidden_is_known) {
    unit.hidden_s = std::numeric_limits<double>::infinity();
  }
}

void Communicator::watch_links(UnitChoice& unit, double seconds_over_model) {
  if (unit.seconds_over_model == 0) {
    unit.seconds_over_model = seconds_over_model;
  } else if (far_apart(seconds_over_model, unit.seconds_over_model)) {
    unit.seconds_over_model = 0;
    group_measurements_->links.reset();
  }
}

}  // namespace isthmus
