#include "torch/units/unmatched_patterns.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "communicator/plan/policy.h"
#include "isthmus/error.h"

namespace isthmus::torch_backend {
namespace {

constexpr int kTimes = 3;
constexpr size_t kMaxUnits = 4096;
constexpr size_t kShownUnits = 5;

// What has been seen with one value of the option.
struct Watched {
  std::vector<std::string> unmatched;
  std::map<uint64_t, int> times;  // how often each unit came, by UnitKey::hash()
  std::set<std::string> names;
  bool is_over = false;
};

std::string listed(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) {
    list += (list.empty() ? "" : ", ") + text;
  }
  return list;
}

std::string complaint(const std::string& units, const Watched& watched) {
  std::vector<std::string> shown(watched.names.begin(), watched.names.end());
  const bool are_all = shown.size() <= kShownUnits;
  shown.resize(std::min(shown.size(), kShownUnits));
  return detail::concatenate("option units=", units, ": no unit matches ", listed(watched.unmatched), "; there are ",
                             watched.names.size(), ": ", listed(shown), are_all ? "" : ", ...");
}

void note(Watched& watched, const UnitKey& unit) {
  watched.names.insert(unit.name);
  std::erase_if(watched.unmatched, [&](const std::string& pattern) {
    return unit_is_compressed(pattern.substr(pattern.starts_with('!') ? 1 : 0), unit.name);
  });
}

// Returns the text of a warning; empty if there is nothing to warn about, or not yet.
std::string look(const std::string& units, const UnitKey& unit) {
  static auto* mutex = new std::mutex;
  static auto* by_option = new std::map<std::string, Watched>;
  const std::lock_guard lock(*mutex);
  const auto [found, is_new] = by_option->try_emplace(units);
  Watched& watched = found->second;
  if (is_new) {
    watched.unmatched = split_patterns(units);
  }
  if (watched.is_over) {
    return "";
  }
  const int times = ++watched.times[unit.hash()];
  if (times == 1) {
    note(watched, unit);
  }
  watched.is_over = times == kTimes || watched.unmatched.empty() || watched.times.size() > kMaxUnits;
  std::string text = watched.is_over && !watched.unmatched.empty() ? complaint(units, watched) : "";
  if (watched.is_over) {
    watched.times.clear();
    watched.names.clear();
  }
  return text;
}

}  // namespace

void look_for_unmatched_patterns(const std::string& units, const UnitKey& unit) {
  if (units == "*") {
    return;
  }
  const std::string text = look(units, unit);
  if (!text.empty() && warning_function) {
    warning_function(text);
  }
}

}  // namespace isthmus::torch_backend
