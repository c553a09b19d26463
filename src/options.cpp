#include "isthmus/options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iomanip>
#include <limits>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "communicator/plan/policy.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

constexpr int64_t kNoUpperBound = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxSegments = 64;

[[noreturn]] void reject(const char* field, const std::string& value, const char* range) {
  throw OptionError(detail::concatenate("option ", field, "=\"", value, "\": expected ", range));
}

template <typename T>
bool parse_whole(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

template <typename T>
std::string shortest(T value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return {text, end};
}

// A row of the table. `parse(text, value)` says whether `text` is in range, and then sets `value`.
template <typename T, typename Parse, typename Print>
OptionField field(const char* name, const char* environment, T Options::*member, const char* range, const char* help,
                  Parse parse, Print print) {
  return {name,
          environment,
          range,
          help,
          [member, print](const Options& options) { return print(options.*member); },
          [name, range, member, parse](Options& options, const std::string& text) {
            T value{};
            if (!parse(text, value)) {
              reject(name, text, range);
            }
            options.*member = value;
          }};
}

// `accepts(value)` decides after the text was read as a number.
template <typename T, typename Accepts>
OptionField number_field(const char* name, const char* environment, T Options::*member, const char* range,
                         const char* help, Accepts accepts) {
  return field(
      name, environment, member, range, help,
      [accepts](const std::string& text, T& value) { return parse_whole(text, value) && accepts(value); },
      [](T value) { return shortest(value); });
}

OptionField count_field(const char* name, const char* environment, int64_t Options::*member, int64_t low, int64_t high,
                        const char* range, const char* help) {
  return number_field(name, environment, member, range, help,
                      [low, high](int64_t value) { return value >= low && value <= high; });
}

template <typename Accepts>
OptionField text_field(const char* name, const char* environment, std::string Options::*member, const char* range,
                       const char* help, Accepts accepts) {
  return field(
      name, environment, member, range, help,
      [accepts](const std::string& text, std::string& value) {
        value = text;
        return accepts(text);
      },
      [](const std::string& value) { return value; });
}

OptionField choice_field(const char* name, const char* environment, std::string Options::*member,
                         std::vector<std::string> choices, const char* range, const char* help) {
  return text_field(name, environment, member, range, help, [choices = std::move(choices)](const std::string& text) {
    return std::find(choices.begin(), choices.end(), text) != choices.end();
  });
}

OptionField switch_field(const char* name, const char* environment, bool Options::*member, const char* help) {
  return field(
      name, environment, member, "1, true, yes, 0, false or no", help,
      [](const std::string& text, bool& value) {
        value = text == "1" || text == "true" || text == "yes";
        return value || text == "0" || text == "false" || text == "no";
      },
      [](bool value) { return std::string(value ? "true" : "false"); });
}

bool are_patterns(const std::string& text) {
  const std::vector<std::string> patterns = split_patterns(text);
  return std::none_of(patterns.begin(), patterns.end(),
                      [](const std::string& pattern) { return pattern.empty() || pattern == "!"; });
}

bool is_link_speed(double gbit) { return gbit >= 0 && gbit <= 100000; }

bool is_power_of_two(int64_t value, int64_t low, int64_t high) {
  return value >= low && value <= high && (value & (value - 1)) == 0;
}

bool is_block_size(int64_t elements) { return elements == 0 || is_power_of_two(elements, 64, 4096); }

bool is_group_size(int64_t elements) { return is_power_of_two(elements, 32, 512); }

using Users = std::vector<OptionUser>;

OptionField used_by(const Users& users, OptionField field) {
  field.users = users;
  return field;
}

std::vector<OptionField> make_table() {
  const Users chooser = {{"auto"}};
  const Users quant = {{"quant"}, {"auto"}};
  const Users quant_alone = {{"quant"}};  // auto chooses by itself
  const Users budgeted = {{"auto"}, {"quant", "bits=0"}};
  const Users tagc = {{"tagc"}, {"auto"}};
  const Users flat_tagc = {{"tagc", "tiers=flat"}};
  const Users sparse = {{"sparse"}, {"auto"}};
  const Users dropping = {{"tagc"}, {"sparse"}, {"auto"}};
  const Users lossy = {{"tagc"}, {"quant"}, {"sparse"}, {"auto"}};
  return {
      text_field("nodes", "ISTHMUS_NODES", &Options::nodes, "NODESxRANKS (\"2x4\") or ranks by node (\"0,1|2,3\")",
                 "Which ranks share a node; empty: found from the launcher, or the machine.",
                 [](const std::string&) { return true; }),  // NodeMap::parse decides, once the world size is known
      choice_field("codec", "ISTHMUS_CODEC", &Options::codec, {"none", "tagc", "quant", "sparse", "auto"},
                   "none, tagc, quant, sparse or auto", "What compresses the gradients that cross between nodes."),
      choice_field("tiers", "ISTHMUS_TIERS", &Options::tiers, {"two", "flat"}, "two or flat",
                   "two: plain inside a node, compressed between nodes; flat: the single-tier baseline."),
      choice_field("inter_tier", "ISTHMUS_INTER_TIER", &Options::inter_tier, {"gloo", "mpi"}, "gloo or mpi",
                   "What carries packets between nodes; mpi: in a job that mpiexec started."),
      used_by(quant_alone, number_field("bits", "ISTHMUS_BITS", &Options::bits, "1, 2, 3, 4 or 8, or 0",
                                        "Bits of each element's code; 0: the fewest that keep to error_budget.",
                                        [](int64_t value) { return (value >= 0 && value <= 4) || value == 8; })),
      used_by(quant,
              number_field("group_elements", "ISTHMUS_GROUP_ELEMENTS", &Options::group_elements,
                           "a power of two from 32 to 512", "Neighbouring elements with one scale.", is_group_size)),
      used_by(quant, switch_field("rotate", "ISTHMUS_ROTATE", &Options::rotate,
                                  "Rotate groups by a randomised Hadamard transform.")),
      used_by(quant, choice_field("scale", "ISTHMUS_SCALE", &Options::scale, {"absmax", "least_error", "unbiased"},
                                  "absmax, least_error or unbiased", "What a group's scale is chosen for.")),
      used_by(quant, choice_field("scale_type", "ISTHMUS_SCALE_TYPE", &Options::scale_type, {"bf16", "fp32"},
                                  "bf16 or fp32", "What a group's scale is sent as.")),
      used_by(quant, choice_field("rounding", "ISTHMUS_ROUNDING", &Options::rounding, {"nearest", "stochastic"},
                                  "nearest or stochastic", "How values are rounded to levels.")),
      used_by(lossy, choice_field("error_feedback", "ISTHMUS_ERROR_FEEDBACK", &Options::error_feedback,
                                  {"codec", "on", "off"}, "codec, on or off",
                                  "Whether what was not sent is added to the next gradient; codec: not with quant.")),
      used_by(dropping, number_field("sparsity", "ISTHMUS_SPARSITY", &Options::sparsity, "at least 0, less than 1",
                                     "The share of elements that is not sent.",
                                     [](double value) { return value >= 0 && value < 1; })),
      used_by(sparse, choice_field("value_type", "ISTHMUS_VALUE_TYPE", &Options::value_type, {"fp32", "bf16", "int8"},
                                   "fp32, bf16 or int8", "What kept values are sent as.")),
      used_by(tagc, number_field("ratio", "ISTHMUS_RATIO", &Options::ratio, "1 to 64, or 0",
                                 "Blocks of a piece for each row of its sketch; 0: as many rows as what is kept needs.",
                                 [](double value) { return value == 0 || (value >= 1 && value <= 64); })),
      used_by(tagc,
              choice_field("cell_type", "ISTHMUS_CELL_TYPE", &Options::cell_type, {"fp32", "bf16", "fp16", "int8"},
                           "fp32, bf16, fp16 or int8", "What the cells of a sketch hold.")),
      used_by(flat_tagc, number_field("index_bits", "ISTHMUS_INDEX_BITS", &Options::index_bits, "1 or 4",
                                      "1 merges indexes by bitwise or, 4 counts (to 15 ranks).",
                                      [](int64_t value) { return value == 1 || value == 4; })),
      used_by(tagc,
              number_field("block_elements", "ISTHMUS_BLOCK_ELEMENTS", &Options::block_elements,
                           "0 or a power of two from 64 to 4096",
                           "Neighbouring elements treated together; 0: chosen from the piece's size.", is_block_size)),
      used_by(tagc, count_field("peel_rounds", "ISTHMUS_PEEL_ROUNDS", &Options::peel_rounds, 1, 1024, "1 to 1024",
                                "Bound on decoding rounds.")),
      used_by(lossy,
              choice_field("own_piece", "ISTHMUS_OWN_PIECE", &Options::own_piece, {"exact", "coded"}, "exact or coded",
                           "Whether the piece that a rank owns, which crosses no link, goes through the codec, too.")),
      used_by(lossy, count_field("dense_steps", "ISTHMUS_DENSE_STEPS", &Options::dense_steps, 0, kNoUpperBound,
                                 "a whole number, 0 or more", "The first reductions of a unit that stay exact.")),
      used_by(lossy,
              count_field("ramp_steps", "ISTHMUS_RAMP_STEPS", &Options::ramp_steps, 0, kNoUpperBound,
                          "a whole number, 0 or more",
                          "The reductions of a unit, after dense_steps, over which a codec is brought in by stages.")),
      count_field("segments", "ISTHMUS_SEGMENTS", &Options::segments, 0, kMaxSegments, "0 to 64",
                  "Parts of a piece, each encoded while the one before crosses; 0: chosen from its size."),
      used_by(lossy, count_field("error_interval", "ISTHMUS_ERROR_INTERVAL", &Options::error_interval, 0, kNoUpperBound,
                                 "a whole number, 0 or more",
                                 "Reductions of a unit between measurements of its codec's error; 0: none.")),
      used_by(budgeted,
              number_field("error_budget", "ISTHMUS_ERROR_BUDGET", &Options::error_budget, "at least 0, at most 1",
                           "The relative squared error that a choice may make; 0: none is given.",
                           [](double value) { return value >= 0 && value <= 1; })),
      used_by(chooser,
              number_field("inter_gbit", "ISTHMUS_INTER_GBIT", &Options::inter_gbit, "0 to 100000",
                           "Speed of a node's link to the other nodes, in Gbit/s; 0: measured.", is_link_speed)),
      used_by(chooser,
              number_field("intra_gbit", "ISTHMUS_INTRA_GBIT", &Options::intra_gbit, "0 to 100000",
                           "Speed of a rank's link to the others of its node, in Gbit/s; 0: measured.", is_link_speed)),
      text_field("units", "ISTHMUS_UNITS", &Options::units, "comma-separated globs, \"!\" excludes (\"*,!*attn*\")",
                 "Which units are compressed, by name.", are_patterns),
      choice_field(
          "gradients", "ISTHMUS_GRADIENTS", &Options::gradients, {"labelled", "backward"}, "labelled or backward",
          "labelled: only reductions that FSDP labels or isthmus.prepare tagged are gradients; backward: every "
          "floating-point reduction in a backward pass is."),
      count_field("min_elements", "ISTHMUS_MIN_ELEMENTS", &Options::min_elements, 0, kNoUpperBound,
                  "a whole number, 0 or more",
                  "Smaller inputs, in elements of the whole collective, are reduced and gathered plainly."),
      switch_field("two_tier_all_gather", "ISTHMUS_TWO_TIER_ALL_GATHER", &Options::two_tier_all_gather,
                   "Large all-gathers cross between nodes once, exactly."),
      count_field("max_units", "ISTHMUS_MAX_UNITS", &Options::max_units, 1, kNoUpperBound, "a whole number, 1 or more",
                  "Units whose state is kept; further ones are exact, and counted."),
      switch_field("device_timings", "ISTHMUS_DEVICE_TIMINGS", &Options::device_timings,
                   "On a GPU: time each phase, by events around it."),
      choice_field("log", "ISTHMUS_LOG", &Options::log, {"debug", "info", "warning", "error"},
                   "debug, info, warning or error", "The least severe message that is logged."),
  };
}

// "tiers=flat": whether the option has that value.
bool holds(const Options& options, const std::string& setting) {
  const auto is_of = [&](const OptionField& field) {
    return setting == detail::concatenate(field.name, '=', field.get(options));
  };
  return std::ranges::any_of(option_fields(), is_of);
}

// Null where the variable is not set, or empty.
const char* environment_value(const OptionField& field) {
  const char* value = std::getenv(field.environment);  // NOLINT(concurrency-mt-unsafe): nothing here writes it
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
  static const std::map<std::string, std::vector<std::string>> used = {
      {"tagc", {"sparsity", "ratio", "cell_type", "block_elements", "peel_rounds"}},
      {"sparse", {"sparsity", "value_type", "error_feedback"}},
      {"quant", {"bits", "group_elements", "rotate", "scale", "scale_type", "rounding", "error_feedback"}},
  };
  std::string text = codec;
  const auto names = used.find(codec);
  for (const OptionField& field : option_fields()) {
    if (names != used.end() && std::ranges::find(names->second, field.name) != names->second.end()) {
      text += detail::concatenate(' ', field.name, '=', field.get(*this));
    }
  }
  return text;
}

std::string OptionField::users_text() const {
  std::string text;
  for (size_t i = 0; i < users.size(); ++i) {
    text += i == 0 ? "" : i + 1 == users.size() ? " or " : ", ";
    text += users[i].codec;
    text += *users[i].only == '\0' ? "" : detail::concatenate(" with ", users[i].only);
  }
  return text;
}

bool OptionField::is_in_environment() const { return environment_value(*this) != nullptr; }

Options Options::from_environment() {
  Options options;
  for (const OptionField& field : option_fields()) {
    const char* value = environment_value(field);
    if (value == nullptr) {
      continue;
    }
    try {
      field.set(options, value);
    } catch (const OptionError&) {
      throw OptionError(
          detail::concatenate("environment variable ", field.environment, "=\"", value, "\": expected ", field.range));
    }
  }
  return options;
}

}  // namespace isthmus
