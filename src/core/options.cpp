#include "isthmus/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <iomanip>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/globs.h"
#include "base/option_rows.h"
#include "codec/registry.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

// Of one of the forms. NodeMap::parse decides what is in range of the world's size, which is unknown here.
bool nodes_have_a_form(const Options& options) {
  return options.nodes == "islands" || options.nodes.find_first_not_of("0123456789x,|") == std::string::npos;
}

bool units_are_patterns(const Options& options) {
  return std::ranges::none_of(split_globs(options.units),
                              [](const std::string& pattern) { return pattern.empty() || pattern == "!"; });
}

// The environment variable of an option: "ISTHMUS_MAX_UNITS".
std::string variable_of(std::string_view option) {
  std::string variable = "ISTHMUS_";
  for (const char letter : option) {
    variable += static_cast<char>(letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter);
  }
  return variable;
}

// Marks an option that every lossy codec uses.
OptionField used_by_lossy(OptionField field) {
  for (const CodecType* type : codec_types_by_id()) {
    if (type->id != CodecId::kNone) {
      field.users.emplace_back(type->name);
    }
  }
  return field;
}

const CodecOption* option_of(const CodecType& type, const char* name) {
  const auto found = std::ranges::find_if(
      type.options, [name](const CodecOption& option) { return std::string_view(name) == option.field.name; });
  return found == type.options.end() ? nullptr : &*found;
}

// Adds the variable, and the codecs that use the field.
void complete(OptionField& field) {
  field.environment = variable_of(field.name);
  for (const CodecType* type : codec_types_by_id()) {
    if (option_of(*type, field.name) != nullptr) {
      field.users.emplace_back(type->name);
    }
  }
}

// The rows that codecs declare, in the order of the registry.
std::vector<OptionField> codec_rows() {
  std::vector<OptionField> rows;
  for (const CodecType* type : codec_types()) {
    for (const CodecOption& option : type->options) {
      if (option.field.help != nullptr) {
        rows.push_back(option.field);
      }
    }
  }
  return rows;
}

// The rows before those of codecs.
std::vector<OptionField> first_rows() {
  return {
      {.name = "nodes",
       .range = "NODESxRANKS (\"2x4\"), ranks by node (\"0,1|2,3\"), or \"islands\"",
       .help = "Which ranks share a node; empty: found from the launcher, or the machine; islands: GPUs of a host that "
               "NVLinks, else a PCIe switch, else a NUMA node joins.",
       .member = &Options::nodes,
       .accepts = nodes_have_a_form},
      rows::choice_field("codec", &Options::codec, codec_names(),
                         "What compresses the gradients that cross between nodes."),
      rows::choice_field("tiers", &Options::tiers, {"two", "flat"},
                         "two: plain inside a node, compressed between nodes; flat: the single-tier baseline."),
      rows::choice_field("inter_tier", &Options::inter_tier, {"gloo", "mpi"},
                         "What carries packets between nodes; mpi: in a job that mpiexec started."),
  };
}

// The rows after those of codecs.
std::vector<OptionField> last_rows() {
  return {
      used_by_lossy(rows::count_field("dense_steps", &Options::dense_steps, 0,
                                      "The first reductions of a unit that stay exact.")),
      rows::number_field("segments", &Options::segments, "0 to 64",
                         "Parts of a piece, each encoded while the one before crosses; 0: chosen from its size.",
                         [](int64_t value) { return value >= 0 && value <= 64; }),
      used_by_lossy(rows::count_field("error_interval", &Options::error_interval, 0,
                                      "Reductions of a unit between measurements of its codec's error; 0: none.")),
      {.name = "units",
       .range = "comma-separated globs, \"!\" excludes (\"*,!*attn*\")",
       .help = "Which units are compressed, by name.",
       .member = &Options::units,
       .accepts = units_are_patterns},
      rows::choice_field(
          "gradients", &Options::gradients, {"labelled", "backward"},
          "labelled: only reductions that FSDP labels or isthmus.prepare tagged are gradients; backward: every "
          "floating-point reduction in a backward pass is."),
      rows::count_field("min_elements", &Options::min_elements, 0,
                        "Smaller inputs, in elements of the whole collective, are reduced and gathered plainly."),
      rows::choice_field(
          "weights", &Options::weights, {"plain", "delta"},
          "delta: gathers of parameters cross between nodes as bit-exact differences to the gather before."),
      rows::count_field("replica_interval", &Options::replica_interval, 0,
                        "Gathers of a unit, with weights=delta, between comparisons of what ranks hold; 0: none."),
      rows::count_field("max_units", &Options::max_units, 1,
                        "Units that no model holds whose state is kept; further ones are exact, and counted."),
      {.name = "device_timings",
       .range = "1, true, yes, 0, false or no",
       .help = "On a GPU: time each phase, by events around it.",
       .member = &Options::device_timings},
      rows::choice_field("log", &Options::log, {"debug", "info", "warning", "error"},
                         "The least severe message that is logged."),
  };
}

std::vector<OptionField> make_table() {
  std::vector<OptionField> table;
  for (std::vector<OptionField>& part : std::array{first_rows(), codec_rows(), last_rows()}) {
    std::ranges::move(part, std::back_inserter(table));
  }
  std::ranges::for_each(table, complete);
  return table;
}

// Each returns whether the text is a value, and then sets it.
bool parse(const std::string& text, std::string& value) {
  value = text;
  return true;
}
bool parse(const std::string& text, bool& value) {
  value = text == "1" || text == "true" || text == "yes";
  return value || text == "0" || text == "false" || text == "no";
}
template <typename Number>
bool parse(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// The text of the error that refuses a value.
std::string refusal(const std::string& value, const std::string& range) {
  return detail::concatenate("=\"", value, "\": expected ", range);
}

std::string as_text(const std::string& value) { return value; }
std::string as_text(bool value) { return value ? "true" : "false"; }
std::string as_text(int64_t value) { return std::to_string(value); }
std::string as_text(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);  // shortest that reads back the same
  return {text, end};
}

// Null where the variable is not set or empty.
const char* environment_value(const std::string& variable) {
  const char* value = std::getenv(variable.c_str());  // NOLINT(concurrency-mt-unsafe): nothing here writes it
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
  return field.users.empty() || std::ranges::find(field.users, codec) != field.users.end();
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

void OptionField::set(Options& options, const std::string& text) const {
  Options changed = options;
  const auto found = std::ranges::find(choices, text);
  const auto parse_member = [&](auto field) {
    auto& value = changed.*field;
    if constexpr (std::is_enum_v<std::decay_t<decltype(value)>>) {
      value = static_cast<std::decay_t<decltype(value)>>(found - choices.begin());
      return true;
    } else {
      return parse(text, value);
    }
  };
  const bool is_word = choices.empty() || found != choices.end();
  ISTHMUS_CHECK(OptionError, is_word && std::visit(parse_member, member) && (accepts == nullptr || accepts(changed)),
                "option ", name, refusal(text, range));
  options = std::move(changed);
}

std::string OptionField::get(const Options& options) const {
  const auto text_of = [&](auto field) {
    if constexpr (std::is_enum_v<std::decay_t<decltype(options.*field)>>) {
      return choices.at(static_cast<size_t>(options.*field));
    } else {
      return as_text(options.*field);
    }
  };
  return std::visit(text_of, member);
}

std::string OptionField::users_text() const { return rows::listed(users); }

bool OptionField::is_in_environment() const { return environment_value(environment) != nullptr; }

Options Options::from_environment() {
  Options options;
  for (const OptionField& field : option_fields()) {
    const char* value = environment_value(field.environment);
    if (value == nullptr) {
      continue;
    }
    try {
      field.set(options, value);
    } catch (const OptionError&) {
      throw OptionError(detail::concatenate("environment variable ", field.environment, refusal(value, field.range)));
    }
  }
  return options;
}

}  // namespace isthmus
