#include "communicator/plan/policy.h"

#include <fnmatch.h>

#include <utility>

namespace isthmus {
namespace {

constexpr const char* kOrdinalBegins = " (";

std::string without_ordinal(const std::string& name) {
  const size_t begin = name.rfind(kOrdinalBegins);
  const size_t digits = begin + std::string::traits_type::length(kOrdinalBegins);
  const bool has_one = begin != std::string::npos && digits + 1 < name.size() &&
                       name.find_first_not_of("0123456789", digits) == name.size() - 1 && name.back() == ')';
  return has_one ? name.substr(0, begin) : name;
}

bool matches(const char* glob, const std::string& name) { return fnmatch(glob, name.c_str(), FNM_NOESCAPE) == 0; }

}  // namespace

std::string with_ordinal(std::string name, int ordinal) {
  return ordinal == 0 ? name : std::move(name) + kOrdinalBegins + std::to_string(ordinal + 1) + ')';
}

bool unit_is_compressed(const std::string& units, const std::string& name) {
  const std::string base = without_ordinal(name);
  bool any_includes = false;
  bool included = false;
  for (const std::string& pattern : split_globs(units)) {
    const bool excludes = pattern.starts_with('!');
    const char* glob = pattern.c_str() + (excludes ? 1 : 0);
    const bool is_meant = matches(glob, name) || matches(glob, base);
    if (excludes && is_meant) {
      return false;
    }
    any_includes |= !excludes;
    included |= !excludes && is_meant;
  }
  return included || !any_includes;
}

bool is_large(const Options& options, int64_t num_elements) { return num_elements >= options.min_elements; }

std::optional<Reason> why_policy_is_exact(const Options& options, const std::string& name, int64_t num_elements) {
  if (!is_large(options, num_elements)) {
    return Reason::kTooSmall;
  }
  return unit_is_compressed(options.units, name) ? std::nullopt : std::optional(Reason::kExcluded);
}

}  // namespace isthmus
