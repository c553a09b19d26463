#include "base/removed_options.h"

#include <algorithm>

namespace isthmus {

const std::vector<RemovedOption>& removed_options() {
  static const std::vector<RemovedOption> table = {
      {"codec", "auto", "quant is the default; isthmus plan and isthmus bench training --here say what to set"},
      {"bits", "0", "4 is the default; isthmus plan and isthmus bench training --here say what to set"},
      {"error_budget", "", "bits decides how much codec quant may lose, as docs/choosing.md says"},
      {"inter_gbit", "", "isthmus plan --inter says what to set for a link"},
      {"intra_gbit", "", "isthmus plan --intra says what to set for a link"},
      {"ramp_steps", "", "dense_steps for tagc; with quant a bit more from the beginning is as good"},
      {"gathers", "", "all-gathers of min_elements and more cross between nodes once, in two tiers"},
  };
  return table;
}

const RemovedOption* find_removed(std::string_view name, std::string_view value) {
  const auto found = std::ranges::find_if(
      removed_options(), [&](const RemovedOption& removed) { return name == removed.name && value == removed.value; });
  return found == removed_options().end() ? nullptr : &*found;
}

std::string RemovedOption::environment() const {
  std::string variable = "ISTHMUS_";
  for (const char* letter = name; *letter != '\0'; ++letter) {
    variable += static_cast<char>(*letter >= 'a' && *letter <= 'z' ? *letter - 'a' + 'A' : *letter);
  }
  return variable;
}

}  // namespace isthmus
