// Makes rows of the table of options: each sets a member of Options and checks its type and range.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "isthmus/error.h"
#include "isthmus/options.h"

namespace isthmus {

// The parts of comma-separated `text`, without the spaces around them.
inline std::vector<std::string> split_patterns(const std::string& text) {
  std::vector<std::string> patterns;
  std::istringstream stream(text + ',');  // the comma keeps an empty last part
  for (std::string part; std::getline(stream, part, ',');) {
    const size_t begin = part.find_first_not_of(' ');
    const size_t end = part.find_last_not_of(' ');
    patterns.push_back(begin == std::string::npos ? "" : part.substr(begin, end - begin + 1));
  }
  return patterns;
}

}  // namespace isthmus

namespace isthmus::rows {

// The environment variable of an option: "ISTHMUS_MAX_UNITS".
inline std::string variable_of(std::string_view option) {
  std::string variable = "ISTHMUS_";
  for (const char letter : option) {
    variable += static_cast<char>(letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter);
  }
  return variable;
}

// {"a", "b", "c"} -> "a, b or c".
inline std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  return text;
}

// The text of the error that refuses a value.
inline std::string refusal(const std::string& value, const std::string& range) {
  return detail::concatenate("=\"", value, "\": expected ", range);
}

template <typename T>
bool parse_whole(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Makes a row. `parse(text, value)` returns whether `text` is in range, and then sets `value`.
template <typename T, typename Parse>
OptionField field(const char* name, T Options::*member, const std::string& range, const char* help, Parse parse) {
  return {name,
          variable_of(name),
          range,
          help,
          member,
          [name, range, member, parse = std::move(parse)](Options& options, const std::string& text) {
            T value{};
            if (!parse(text, value)) {
              throw OptionError(detail::concatenate("option ", name, refusal(text, range)));
            }
            options.*member = std::move(value);
          }};
}

// Makes a row for a number: `accepts(value)` decides whether the number is in range.
template <typename T, typename Accepts>
OptionField number_field(const char* name, T Options::*member, const std::string& range, const char* help,
                         Accepts accepts) {
  return field(name, member, range, help, [accepts = std::move(accepts)](const std::string& text, T& value) {
    return parse_whole(text, value) && accepts(value);
  });
}

// Makes a row for a number that is at least `least`.
inline OptionField count_field(const char* name, int64_t Options::*member, int64_t least, const char* help) {
  return number_field(name, member, detail::concatenate("a whole number, ", least, " or more"), help,
                      [least](int64_t value) { return value >= least; });
}

template <typename Accepts>
OptionField text_field(const char* name, std::string Options::*member, const std::string& range, const char* help,
                       Accepts accepts) {
  return field(name, member, range, help, [accepts = std::move(accepts)](const std::string& text, std::string& value) {
    value = text;
    return accepts(text);
  });
}

// Makes a row for one of a few words: the member is an enum with these, in this order, or the word itself.
template <typename Choice>
OptionField choice_field(const char* name, Choice Options::*member, const std::vector<std::string>& choices,
                         const char* help) {
  OptionField row = field(name, member, listed(choices), help, [choices](const std::string& text, Choice& value) {
    const auto found = std::ranges::find(choices, text);
    if constexpr (std::is_enum_v<Choice>) {
      value = static_cast<Choice>(found - choices.begin());
    } else {
      value = text;
    }
    return found != choices.end();
  });
  row.choices = choices;
  return row;
}

inline OptionField switch_field(const char* name, bool Options::*member, const char* help) {
  return field(name, member, "1, true, yes, 0, false or no", help, [](const std::string& text, bool& value) {
    value = text == "1" || text == "true" || text == "yes";
    return value || text == "0" || text == "false" || text == "no";
  });
}

}  // namespace isthmus::rows
