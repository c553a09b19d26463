#include "communicator/plan/policy.h"

#include <fnmatch.h>

#include <sstream>

namespace isthmus {

std::vector<std::string> split_patterns(const std::string& text) {
  std::vector<std::string> patterns;
  std::istringstream stream(text + ',');  // the comma keeps a last empty part
  for (std::string part; std::getline(stream, part, ',');) {
    const size_t begin = part.find_first_not_of(' ');
    const size_t end = part.find_last_not_of(' ');
    patterns.push_back(begin == std::string::npos ? "" : part.substr(begin, end - begin + 1));
  }
  return patterns;
}

bool unit_is_compressed(const std::string& units, const std::string& name) {
  bool any_includes = false;
  bool included = false;
  for (const std::string& pattern : split_patterns(units)) {
    const bool excludes = pattern.starts_with('!');
    const bool matches = fnmatch(pattern.c_str() + (excludes ? 1 : 0), name.c_str(), 0) == 0;
    if (excludes && matches) {
      return false;
    }
    any_includes |= !excludes;
    included |= !excludes && matches;
  }
  return included || !any_includes;
}

bool is_large(const Options& options, int64_t num_elements) { return num_elements >= options.min_elements; }

const char* why_policy_is_exact(const Options& options, const std::string& name, int64_t num_elements) {
  if (!is_large(options, num_elements)) {
    return kTooSmall;
  }
  return unit_is_compressed(options.units, name) ? nullptr : "excluded by policy (units)";
}

}  // namespace isthmus
