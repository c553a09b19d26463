// All options of Isthmus, with unit, range, default and environment variable. Nothing else reads the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace isthmus {

struct OptionField;

// Options that are one of a few words: in the order of OptionField::choices.
enum class TierMode { kTwo, kFlat };
enum class InterTier { kGloo, kMpi };
enum class ErrorFeedback { kCodec, kOn, kOff };
enum class GradientSource { kLabelled, kBackward };
enum class WeightForm { kPlain, kDelta };

struct Options {
  std::string nodes;  // "2x4", "0,1|2,3" by global rank, "islands"; empty: from launcher or machine
  // none, tagc, quant. Quant with 4 bits is the default: among the settings whose loss could not be told from that of
  // exact training it sends the fewest bytes (docs/convergence.md).
  std::string codec = "quant";
  TierMode tiers = TierMode::kTwo;
  InterTier inter_tier = InterTier::kGloo;               // what carries the packets (torch backend only)
  int64_t bits = 4;                                      // quant: bits of each element's code: 1 to 8
  ErrorFeedback error_feedback = ErrorFeedback::kCodec;  // codec: off for quant, on for others, as published
  double sparsity = 0.9875;                              // tagc: share of each piece that is not sent
  double ratio = 10;                                     // tagc: sketch rows = blocks / ratio
  int64_t dense_steps = 0;                               // steps of a unit at the beginning of training that are exact
  int64_t segments = 0;          // parts of a piece: one is encoded while another crosses; 0: chosen from its size
  int64_t error_interval = 100;  // steps of a unit between measurements of the codec's error; 0: never measured
  std::string units = "*";       // which units are compressed: comma-separated globs of names, "!" excludes
  GradientSource gradients = GradientSource::kLabelled;  // which reductions are taken for gradients
  int64_t min_elements = 65536;  // smaller collectives (by their whole input) are reduced and gathered plainly
  WeightForm weights = WeightForm::kPlain;  // how gathers of parameters cross between nodes
  int64_t replica_interval = 100;           // weights=delta: gathers of a unit between comparisons of replicas; 0: none
  int64_t max_units = 4096;                 // most units with state that nobody holds; further ones are exact, counted
  bool device_timings = false;              // GPU: statistics have the seconds of each phase, from events around it
  std::string log = "warning";              // debug, info, warning, error

  bool is_flat() const { return tiers == TierMode::kFlat; }
  bool uses_mpi() const { return inter_tier == InterTier::kMpi; }
  bool sends_differences() const { return weights == WeightForm::kDelta; }
  bool is_lossy() const { return codec != "none"; }

  // Checks the range of each field by itself. Throws OptionError that names field, value and range.
  void validate() const;
  // "codec=tagc tiers=two ...": every field, in order of declaration. Equal texts mean equal options.
  std::string to_string() const;
  // The options that decide how the codec makes packets: "quant bits=4 error_feedback=off ...".
  std::string codec_settings() const;
  // Whether the codec uses the field, given the other options. If not, the field's value changes nothing.
  bool uses(const OptionField& field) const;
  // The defaults, overridden by ISTHMUS_*. Throws OptionError that names the variable. Only this and
  // is_in_environment() read the environment.
  static Options from_environment();
};

// One row for each field. Parsing, printing, Python's keywords and attributes, and the table in docs follow from it.
struct OptionField {
  using Member =
      std::variant<std::string Options::*, int64_t Options::*, double Options::*, bool Options::*, TierMode Options::*,
                   InterTier Options::*, ErrorFeedback Options::*, GradientSource Options::*, WeightForm Options::*>;

  const char* name = nullptr;    // of the field and the Python keyword
  std::string environment = {};  // variable
  std::string range = {};        // for people
  const char* help = nullptr;    // one sentence; null: the row is declared elsewhere
  Member member = {};
  std::function<bool(const Options&)> accepts = {};  // whether the member's value is in range; null: any is
  std::vector<std::string> choices = {};             // the words it may be; empty: it is no word
  std::vector<std::string> users = {};               // codecs; empty: every codec uses it

  // Throws OptionError that names field, value and range, and changes nothing, if the text is no such value.
  void set(Options& options, const std::string& text) const;
  // The value as text that set() takes.
  std::string get(const Options& options) const;
  // "tagc or quant"; empty: every codec uses it.
  std::string users_text() const;
  // Whether its variable is set and not empty.
  bool is_in_environment() const;
};
const std::vector<OptionField>& option_fields();

}  // namespace isthmus
