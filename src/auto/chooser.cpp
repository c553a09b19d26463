#include "auto/chooser.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

#include "codec/registry.h"
#include "communicator/path/segments.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

using detail::concatenate;

struct CandidateRow {
  const CodecType* type;
  CodecCandidate candidate;
};

std::vector<CandidateRow> make_rows() {
  const CodecType& none = find_codec("none");
  std::vector<CandidateRow> rows = {{&none, {"world"}}, {&none, {"none"}}};
  for (const CodecType* type : codec_types()) {
    if (type == &none || type->candidates == nullptr) {
      continue;
    }
    for (CodecCandidate& candidate : type->candidates()) {
      rows.push_back({type, std::move(candidate)});
    }
  }
  return rows;
}

const std::vector<CandidateRow>& rows() {
  static const std::vector<CandidateRow> rows = make_rows();
  return rows;
}

const CandidateRow& row_of(Candidate candidate) { return rows().at(static_cast<size_t>(candidate.place)); }

// The first that loses something.
constexpr Candidate kFirstLossy{2};

// Two things of which one is cut into `parts`, and part i of the second needs part i of the first.
double pipelined(double first, double second, int64_t parts) {
  return std::max(first, second) + std::min(first, second) / static_cast<double>(parts);
}

// Whether the speeds are known that its time depends on.
bool known(Candidate candidate, const Measurements& measured, const UnitFacts& unit) {
  if (candidate == Candidate::kWorld) {
    return unit.collective == Collective::kAllReduce ? measured.links.world_all_reduce.known()
                                                     : measured.links.world_reduce.known();
  }
  const bool intra_known =
      unit.ranks_per_node == 1 || (measured.links.intra_reduce.known() && measured.links.intra_gather.known());
  return measured.codecs[candidate].known() && measured.links.inter.known() && intra_known;
}

double error_of(Candidate candidate, const ByCandidate<std::optional<double>>& errors, const Options& options) {
  return errors[candidate].value_or(prior_error(candidate, options));
}

// Three digits, or whole.
std::string number(double value) {
  std::ostringstream text;
  text.precision(3);
  if (value >= 1000) {
    text << static_cast<int64_t>(value);
  } else {
    text << value;
  }
  return text.str();
}

std::string milliseconds(double seconds) {
  std::ostringstream text;
  text.setf(std::ios::fixed);
  text.precision(seconds < .0995 ? (seconds < .00995 ? 2 : 1) : 0);
  text << 1e3 * seconds << " ms";
  return text.str();
}

// A choice in the making.
class Comparison {
 public:
  Comparison(const Measurements& measured, const UnitFacts& unit, const Options& options)
      : measured_(measured), unit_(unit), options_(options) {
    const auto is_known = [&](Candidate candidate) { return known(candidate, measured, unit); };
    std::ranges::copy_if(candidates(), std::back_inserter(known_), is_known);
  }

  Choice result() const {
    const std::optional<Candidate> exact = fastest_exact();
    if (!exact) {
      return choice(Candidate::kNone, 0, "none: link speeds are not known");
    }
    const std::optional<Candidate> lossy = fastest_lossy();
    const bool pays = lossy && visible(*lossy) < (1 - kWorthLosing) * compared(*exact);
    const Candidate best = pays ? *lossy : *exact;
    const Candidate chosen = keeps_current(best) ? *unit_.current : best;
    return choice(chosen, seconds(chosen), reason(chosen, *exact));
  }

 private:
  double seconds(Candidate candidate) const { return reduction_seconds(candidate, measured_, unit_, options_); }
  // Without what hides behind compute.
  double visible(Candidate candidate) const { return std::max(0.0, seconds(candidate) - measured_.hidden_s); }
  // With what the world backend is slower beside compute than it was measured to be.
  double compared(Candidate candidate) const {
    return visible(candidate) / (candidate == Candidate::kWorld ? 1 - kWorthLeavingTiers : 1);
  }
  bool allowed(Candidate candidate) const {
    return is_exact(candidate) || error_of(candidate, measured_.errors, options_) <= error_budget(options_);
  }

  // Of two that are as fast, two tiers.
  std::optional<Candidate> fastest_exact() const {
    std::optional<Candidate> best;
    for (const Candidate candidate : known_) {
      if (is_exact(candidate) && (!best || compared(candidate) <= compared(*best))) {
        best = candidate;
      }
    }
    return best;
  }

  // Of two that are about as fast, the one that comes first in candidates().
  std::optional<Candidate> fastest_lossy() const {
    std::optional<Candidate> best;
    for (const Candidate candidate : known_) {
      const bool offered = !is_exact(candidate) && allowed(candidate);
      if (offered && (!best || visible(candidate) < (1 - kWorthwhile) * visible(*best))) {
        best = candidate;
      }
    }
    return best;
  }

  bool keeps_current(Candidate best) const {
    if (!unit_.current || !allowed(*unit_.current) || !known(*unit_.current, measured_, unit_)) {
      return false;
    }
    const double current_s = visible(*unit_.current);
    const bool is_needless = current_s == 0 && best < *unit_.current;  // nothing is seen of a more exact one, either
    return !is_needless && visible(best) >= (1 - kWorthChanging) * current_s;
  }

  Choice choice(Candidate candidate, double candidate_s, std::string why) const {
    return {candidate, settings_of(candidate, options_), candidate_s, std::move(why)};
  }

  std::string reason(Candidate chosen, Candidate exact) const {
    return concatenate(isthmus::to_string(chosen), ": ", milliseconds(seconds(chosen)), " ",
                       is_exact(chosen) ? why_exact(chosen) : why_lossy(chosen, exact));
  }

  std::string why_lossy(Candidate chosen, Candidate exact) const {
    return concatenate("instead of ", milliseconds(seconds(exact)), " plain ", link(), "; ", error_text(chosen),
                       " of budget ", number(error_budget(options_)));
  }

  std::string why_exact(Candidate chosen) const {
    const std::optional<Candidate> lossy = fastest_lossy();
    if (!lossy) {
      return concatenate(link(), "; ", no_codec());
    }
    if (measured_.hidden_s > 0 && visible(chosen) == 0) {
      return concatenate(link(), ", all of it hidden behind compute");
    }
    return concatenate(link(), "; ", isthmus::to_string(*lossy), " would take ", milliseconds(seconds(*lossy)),
                       seconds(*lossy) > seconds(chosen) ? "" : ", which saves too little");
  }

  std::string no_codec() const {
    const auto keeps_to_budget = [this](Candidate each) { return !is_exact(each) && allowed(each); };
    if (std::ranges::any_of(candidates(), keeps_to_budget)) {
      return "no codec's speed is known";
    }
    return concatenate("no codec keeps to the error budget ", number(error_budget(options_)), " (",
                       isthmus::to_string(kFirstLossy), ": ", error_text(kFirstLossy), ")");
  }

  std::string error_text(Candidate candidate) const {
    const char* source = measured_.errors[candidate] ? "error " : "expected error ";
    return source + number(error_of(candidate, measured_.errors, options_));
  }

  std::string link() const {
    if (!measured_.links.inter.known()) {
      return "over a link of unknown speed";
    }
    const double node_bytes_per_s = measured_.links.inter.bytes_per_s * unit_.ranks_per_node;
    return concatenate("over ", number(8e-9 * node_bytes_per_s), " Gbit/s");
  }

  const Measurements& measured_;
  const UnitFacts& unit_;
  const Options& options_;
  std::vector<Candidate> known_;
};

}  // namespace

const std::vector<Candidate>& candidates() {
  static const std::vector<Candidate> candidates = [] {
    std::vector<Candidate> all(rows().size());
    for (int place = 0; Candidate & candidate : all) {
      candidate.place = place++;
    }
    return all;
  }();
  return candidates;
}

std::string to_string(Candidate candidate) { return row_of(candidate).candidate.label; }

double error_budget(const Options& options) {
  return options.error_budget > 0 ? options.error_budget : kDefaultErrorBudget;
}

double prior_error(Candidate candidate, const Options& options) {
  return row_of(candidate).type->prior_error(settings_of(candidate, options));
}

Options settings_of(Candidate candidate, const Options& options) {
  const CandidateRow& row = row_of(candidate);
  Options settings = options;
  settings.codec = row.type->name;
  if (row.candidate.choose) {
    row.candidate.choose(settings);
  }
  return settings;
}

double reduction_seconds(Candidate candidate, const Measurements& measured, const UnitFacts& unit,
                         const Options& options) {
  const auto elements = static_cast<double>(unit.num_elements);
  const auto bytes = elements * static_cast<double>(element_bytes(unit.dtype));
  const LinkSpeeds& links = measured.links;
  const bool scatters = unit.collective != Collective::kAllReduce;
  if (candidate == Candidate::kWorld) {
    return (scatters ? links.world_reduce : links.world_all_reduce).seconds(bytes);
  }
  const CodecSpeed& codec = measured.codecs[candidate];
  const double nodes = unit.num_nodes;
  const double ranks = unit.ranks_per_node;
  const double piece = elements / (nodes * ranks);
  const double wire_bits = row_of(candidate).type->wire_bits(unit.dtype, settings_of(candidate, options));
  const double packet_bytes = piece * wire_bits / 8;
  const auto segments = static_cast<int64_t>(segments_of(static_cast<int64_t>(piece), options.segments).size());
  const double encode_s = (nodes - 1) * piece / codec.encode_elements_per_s;
  const double exchange_s =
      static_cast<double>(segments) * links.inter.latency_s + (nodes - 1) * packet_bytes / links.inter.bytes_per_s;
  const double decode_s = (nodes - 1) * piece / codec.decode_elements_per_s;
  double total_s = pipelined(encode_s, exchange_s, segments) + decode_s;
  if (ranks > 1) {
    total_s += links.intra_reduce.seconds((ranks - 1) / ranks * bytes);
  }
  if (!scatters) {
    total_s += piece / codec.encode_elements_per_s + links.inter.seconds((nodes - 1) * packet_bytes) +
               elements / codec.decode_elements_per_s;
    total_s += ranks > 1 ? links.intra_gather.seconds((ranks - 1) * nodes * packet_bytes) : 0;
  }
  return total_s;
}

bool world_gathers_faster(const LinkSpeeds& links, int64_t num_bytes, int num_nodes, int ranks_per_node) {
  const bool tiers_known = links.inter.known() && (ranks_per_node == 1 || links.intra_gather.known());
  if (!links.world_gather.known() || !tiers_known) {
    return false;
  }
  const auto bytes = static_cast<double>(num_bytes);
  const double nodes = num_nodes;
  const double ranks = ranks_per_node;
  const double within_s = ranks > 1 ? links.intra_gather.seconds((ranks - 1) / ranks * bytes) : 0;
  const double tiers_s = links.inter.seconds((nodes - 1) / (nodes * ranks) * bytes) + within_s;
  return links.world_gather.seconds(bytes) < (1 - kWorthLeavingTiers) * tiers_s;
}

Choice choose(const Measurements& measured, const UnitFacts& unit, const Options& options) {
  return Comparison(measured, unit, options).result();
}

Choice choose_width(const ByCandidate<std::optional<double>>& errors, const Options& options) {
  const double budget = error_budget(options);
  Choice choice{Candidate::kNone, settings_of(Candidate::kNone, options), 0, ""};
  double least = 0;
  for (const Candidate candidate : candidates()) {
    if (row_of(candidate).type->id != CodecId::kQuant) {
      continue;
    }
    const double error = error_of(candidate, errors, options);
    least = least == 0 ? error : least;
    if (error <= budget) {
      choice.candidate = candidate;
      choice.settings = settings_of(candidate, options);
      choice.reason =
          concatenate(to_string(candidate), ": the fewest bits whose ", errors[candidate] ? "" : "expected ", "error ",
                      number(error), " keeps to the budget ", number(budget));
    }
  }
  if (choice.candidate == Candidate::kNone) {
    choice.reason =
        concatenate("none: no width keeps to the error budget ", number(budget), " (quant 8 bit: ", number(least), ")");
  }
  return choice;
}

}  // namespace isthmus
