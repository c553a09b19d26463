#include "isthmus/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <iomanip>
#include <iterator>
#include <sstream>
#include <string_view>

#include "base/option_rows.h"
#include "base/removed_options.h"
#include "codec/registry.h"
#include "communicator/plan/policy.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

constexpr int64_t kMaxSegments = 64;

bool are_patterns(const std::string& text) {
  const std::vector<std::string> patterns = split_patterns(text);
  return std::none_of(patterns.begin(), patterns.end(),
                      [](const std::string& pattern) { return pattern.empty() || pattern == "!"; });
}

// Marks an option that every lossy codec uses.
OptionField used_by_lossy(OptionField field) {
  for (const CodecType* type : codec_types_by_id()) {
    if (type->id != CodecId::kNone) {
      field.users.push_back({type->name});
    }
  }
  return field;
}

const CodecOption* option_of(const CodecType& type, const char* name) {
  const auto found = std::ranges::find_if(
      type.options, [name](const CodecOption& option) { return std::string_view(name) == option.field.name; });
  return found == type.options.end() ? nullptr : &*found;
}

// Adds the codecs that use the field.
void add_users(OptionField& field) {
  for (const CodecType* type : codec_types_by_id()) {
    if (const CodecOption* option = option_of(*type, field.name)) {
      field.users.push_back({type->name, option->only});
    }
  }
}

// The rows that codecs declare, in the order of the registry.
std::vector<OptionField> codec_rows() {
  std::vector<OptionField> rows;
  for (const CodecType* type : codec_types()) {
    for (const CodecOption& option : type->options) {
      if (option.field.set != nullptr) {
        rows.push_back(option.field);
      }
    }
  }
  return rows;
}

// The rows before those of codecs.
std::vector<OptionField> first_rows() {
  const std::vector<std::string> codecs = codec_names();
  static const std::string one_of_codecs = listed(codecs);
  return {
      rows::text_field("nodes", "ISTHMUS_NODES", &Options::nodes,
                       "NODESxRANKS (\"2x4\") or ranks by node (\"0,1|2,3\")",
                       "Which ranks share a node; empty: found from the launcher, or the machine.",
                       [](const std::string&) { return true; }),  // NodeMap::parse decides: the world's size is unknown
      rows::choice_field("codec", "ISTHMUS_CODEC", &Options::codec, codecs, one_of_codecs.c_str(),
                         "What compresses the gradients that cross between nodes."),
      rows::choice_field("tiers", "ISTHMUS_TIERS", &Options::tiers, {"two", "flat"}, "two or flat",
                         "two: plain inside a node, compressed between nodes; flat: the single-tier baseline."),
      rows::choice_field("inter_tier", "ISTHMUS_INTER_TIER", &Options::inter_tier, {"gloo", "mpi"}, "gloo or mpi",
                         "What carries packets between nodes; mpi: in a job that mpiexec started."),
  };
}

// The rows after those of codecs.
std::vector<OptionField> last_rows() {
  using rows::kNoUpperBound;
  return {
      used_by_lossy(rows::count_field("dense_steps", "ISTHMUS_DENSE_STEPS", &Options::dense_steps, 0, kNoUpperBound,
                                      "a whole number, 0 or more", "The first reductions of a unit that stay exact.")),
      rows::count_field("segments", "ISTHMUS_SEGMENTS", &Options::segments, 0, kMaxSegments, "0 to 64",
                        "Parts of a piece, each encoded while the one before crosses; 0: chosen from its size."),
      used_by_lossy(rows::count_field("error_interval", "ISTHMUS_ERROR_INTERVAL", &Options::error_interval, 0,
                                      kNoUpperBound, "a whole number, 0 or more",
                                      "Reductions of a unit between measurements of its codec's error; 0: none.")),
      rows::text_field("units", "ISTHMUS_UNITS", &Options::units,
                       "comma-separated globs, \"!\" excludes (\"*,!*attn*\")", "Which units are compressed, by name.",
                       are_patterns),
      rows::choice_field(
          "gradients", "ISTHMUS_GRADIENTS", &Options::gradients, {"labelled", "backward"}, "labelled or backward",
          "labelled: only reductions that FSDP labels or isthmus.prepare tagged are gradients; backward: every "
          "floating-point reduction in a backward pass is."),
      rows::count_field("min_elements", "ISTHMUS_MIN_ELEMENTS", &Options::min_elements, 0, kNoUpperBound,
                        "a whole number, 0 or more",
                        "Smaller inputs, in elements of the whole collective, are reduced and gathered plainly."),
      rows::choice_field(
          "weights", "ISTHMUS_WEIGHTS", &Options::weights, {"plain", "delta"}, "plain or delta",
          "delta: gathers of parameters cross between nodes as bit-exact differences to the gather before."),
      rows::count_field("replica_interval", "ISTHMUS_REPLICA_INTERVAL", &Options::replica_interval, 0, kNoUpperBound,
                        "a whole number, 0 or more",
                        "Gathers of a unit, with weights=delta, between comparisons of what ranks hold; 0: none."),
      rows::count_field("max_units", "ISTHMUS_MAX_UNITS", &Options::max_units, 1, kNoUpperBound,
                        "a whole number, 1 or more", "Units whose state is kept; further ones are exact, and counted."),
      rows::switch_field("device_timings", "ISTHMUS_DEVICE_TIMINGS", &Options::device_timings,
                         "On a GPU: time each phase, by events around it."),
      rows::choice_field("log", "ISTHMUS_LOG", &Options::log, {"debug", "info", "warning", "error"},
                         "debug, info, warning or error", "The least severe message that is logged."),
  };
}

std::vector<OptionField> make_table() {
  std::vector<OptionField> table;
  for (std::vector<OptionField>& part : std::array{first_rows(), codec_rows(), last_rows()}) {
    std::ranges::move(part, std::back_inserter(table));
  }
  std::ranges::for_each(table, add_users);
  return table;
}

std::string as_text(const std::string& value) { return value; }
std::string as_text(bool value) { return value ? "true" : "false"; }
std::string as_text(int64_t value) { return std::to_string(value); }
std::string as_text(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);  // shortest that reads back the same
  return {text, end};
}

// Whether the option has the value in `setting`: "tiers=flat".
bool holds(const Options& options, const std::string& setting) {
  const auto is_of = [&](const OptionField& field) {
    return setting == detail::concatenate(field.name, '=', field.get(options));
  };
  return std::ranges::any_of(option_fields(), is_of);
}

// Null where the variable is not set or empty.
const char* environment_value(const char* variable) {
  const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): nothing here writes it
  return value == nullptr || *value == '\0' ? nullptr : value;
}

}  // namespace

const std::vector<OptionField>& option_fields() {
  static const std::vector<OptionField> fields = make_table();
  return fields;
}

void Options::validate() const {
  Options checked;
  for (const OptionField& field : option_fields()) {
    field.set(checked, field.get(*this));
  }
}

std::string Options::to_string() const {
  std::ostringstream text;
  for (const OptionField& field : option_fields()) {
    const std::string value = field.get(*this);
    text << (text.tellp() > 0 ? " " : "") << field.name << '=';
    if (value.empty() || value.find_first_of(" \t\n\"\\") != std::string::npos) {
      text << std::quoted(value);
    } else {
      text << value;
    }
  }
  return text.str();
}

bool Options::uses(const OptionField& field) const {
  return field.users.empty() || std::ranges::any_of(field.users, [this](const OptionUser& user) {
           return user.codec == codec && (*user.only == '\0' || holds(*this, user.only));
         });
}

std::string Options::codec_settings() const {
  const CodecType* type = codec_or_null(codec);
  std::string text = codec;
  for (const OptionField& field : option_fields()) {
    const CodecOption* option = type == nullptr ? nullptr : option_of(*type, field.name);
    if (option != nullptr && option->shapes_packets) {
      text += detail::concatenate(' ', field.name, '=', field.get(*this));
    }
  }
  return text;
}

std::string OptionField::get(const Options& options) const {
  return std::visit([&options](auto field) { return as_text(options.*field); }, member);
}

std::string OptionField::users_text() const {
  std::vector<std::string> texts;
  texts.reserve(users.size());
  for (const OptionUser& user : users) {
    texts.push_back(user.codec + (*user.only == '\0' ? "" : detail::concatenate(" with ", user.only)));
  }
  return listed(texts);
}

bool OptionField::is_in_environment() const { return environment_value(environment) != nullptr; }

Options Options::from_environment() {
  for (const RemovedOption& removed : removed_options()) {
    const bool is_set = *removed.value == '\0' && environment_value(removed.environment().c_str()) != nullptr;
    ISTHMUS_CHECK(OptionError, !is_set, "environment variable ", removed.environment(), ": option ", removed.name,
                  " is gone: ", removed.instead);
  }
  Options options;
  for (const OptionField& field : option_fields()) {
    const char* value = environment_value(field.environment);
    if (value == nullptr) {
      continue;
    }
    try {
      field.set(options, value);
    } catch (const OptionError&) {
      throw OptionError(detail::concatenate("environment variable ", field.environment,
                                            rows::refusal(field.name, value, field.range)));
    }
  }
  return options;
}

}  // namespace isthmus
