#include "communicator/units/weight_history.h"

#include <algorithm>

namespace isthmus {
namespace {

constexpr size_t kKept = 512;          // gathers: two steps of 128 micro-batches
constexpr int64_t kLongest = 256;      // stretch that is compared
constexpr int64_t kShortest = 2;       // shorter stretches say nothing
constexpr int64_t kChangedLately = 4;  // the last packets, the longest of which is taken
constexpr int64_t kUnit = 256;

int64_t round_up(int64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

}  // namespace

void WeightHistory::add(int64_t longest_packet_bytes) {
  packets_.push_back(longest_packet_bytes);
  if (packets_.size() > kKept) {
    packets_.pop_front();
    ++first_;
  }
}

int64_t WeightHistory::oldest_for(int64_t number) {
  return std::max<int64_t>(0, number - static_cast<int64_t>(kKept) + 1);
}

std::optional<bool> WeightHistory::expects_change(int64_t number) const {
  const int64_t last = number - kLag;
  const int64_t oldest = oldest_for(number);
  int64_t longest = kShortest - 1;
  std::optional<bool> expects;
  for (int64_t end = last - kLag; end >= oldest; --end) {
    int64_t length = 0;
    while (length < kLongest && end - length >= oldest && has_changed(end - length) == has_changed(last - length)) {
      ++length;
    }
    if (length > longest) {
      longest = length;
      expects = has_changed(end + kLag);
    } else if (length == longest && expects) {
      expects = *expects || has_changed(end + kLag);
    }
  }
  return expects;
}

int64_t WeightHistory::capacity(int64_t number, int64_t most_bytes) const {
  const std::optional<bool> expects = expects_change(number);
  if (!expects) {
    return most_bytes;
  }
  if (!*expects) {
    return 0;
  }
  int64_t longest = 0;
  int64_t counted = 0;
  for (int64_t i = number - kLag; counted < kChangedLately && i >= oldest_for(number); --i) {
    longest = std::max(longest, bytes_of(i));
    counted += has_changed(i) ? 1 : 0;
  }
  return std::min(most_bytes, round_up(longest + longest / 4 + kUnit));
}

}  // namespace isthmus
