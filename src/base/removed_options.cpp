#include "base/removed_options.h"

#include <algorithm>

namespace isthmus {

const std::vector<RemovedOption>& removed_options() {
  static const std::vector<RemovedOption> table = {
      {"codec", "auto", "quant is the default; isthmus plan and isthmus bench training --here say what to set"},
      {"codec", "sparse", "tagc sends the largest elements, and quant loses less at as many bytes"},
      {"bits", "0", "4 is the default; isthmus plan and isthmus bench training --here say what to set"},
      {"error_budget", "", "bits decides how much codec quant may lose, as docs/choosing.md says"},
      {"inter_gbit", "", "isthmus plan --inter says what to set for a link"},
      {"intra_gbit", "", "isthmus plan --intra says what to set for a link"},
      {"ramp_steps", "", "dense_steps for tagc; with quant a bit more from the beginning is as good"},
      {"value_type", "", "cell_type of codec tagc, or bits of codec quant"},
      {"block_elements", "", "codec tagc chooses it from the piece's size"},
      {"peel_rounds", "", "codec tagc decodes in up to 64 rounds"},
      {"own_piece", "", "it is exact; with tiers=flat it is coded"},
      {"group_elements", "", "groups of codec quant have 128 elements"},
      {"rotate", "", "codec quant always rotates; docs/convergence.md says what it lost without"},
      {"rounding", "", "codec quant rounds to nearest; docs/convergence.md says what stochastic rounding cost"},
      {"scale", "", "codec quant's scale is unbiased"},
      {"scale_type", "", "codec quant's scales are bf16"},
      {"gathers", "", "all-gathers of min_elements and more cross between nodes once, in two tiers"},
  };
  return table;
}

const RemovedOption* find_removed(std::string_view name, std::string_view value) {
  const auto found = std::ranges::find_if(
      removed_options(), [&](const RemovedOption& removed) { return name == removed.name && value == removed.value; });
  return found == removed_options().end() ? nullptr : &*found;
}

std::string variable_of(std::string_view option) {
  std::string variable = "ISTHMUS_";
  for (const char letter : option) {
    variable += static_cast<char>(letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter);
  }
  return variable;
}

}  // namespace isthmus
