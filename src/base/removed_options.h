// Options, and values of options, that are gone: errors name their replacements.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace isthmus {

// The environment variable of an option: "ISTHMUS_ERROR_BUDGET".
std::string variable_of(std::string_view option);

struct RemovedOption {
  const char* name;     // of the option
  const char* value;    // the removed value; empty: the whole option was removed
  const char* instead;  // what to use

  std::string environment() const { return variable_of(name); }
};

const std::vector<RemovedOption>& removed_options();
// Null: no such option or value was removed.
const RemovedOption* find_removed(std::string_view name, std::string_view value = "");

}  // namespace isthmus
