// Makes rows of the table of options: each sets a member of Options and checks its type and range.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "isthmus/options.h"

namespace isthmus::rows {

// {"a", "b", "c"} -> "a, b or c".
inline std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  return text;
}

// Makes a row for a number: `accepts(value)` decides whether it is in range.
template <typename T, typename Accepts>
OptionField number_field(const char* name, T Options::*member, const std::string& range, const char* help,
                         Accepts accepts) {
  return {.name = name,
          .range = range,
          .help = help,
          .member = member,
          .accepts = [member, accepts](const Options& options) { return accepts(options.*member); }};
}

// Makes a row for a number that is at least `least`.
inline OptionField count_field(const char* name, int64_t Options::*member, int64_t least, const char* help) {
  return number_field(name, member, detail::concatenate("a whole number, ", least, " or more"), help,
                      [least](int64_t value) { return value >= least; });
}

// Makes a row for one of a few words: the member is an enum with these, in this order, or the word itself.
template <typename Choice>
OptionField choice_field(const char* name, Choice Options::*member, const std::vector<std::string>& choices,
                         const char* help) {
  return {.name = name, .range = listed(choices), .help = help, .member = member, .choices = choices};
}

}  // namespace isthmus::rows
