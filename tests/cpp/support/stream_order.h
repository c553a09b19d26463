// Which work on the streams of a device comes before which, by what was enqueued and not by when it happened to run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "isthmus/buffer.h"

namespace isthmus::test {

// A part of memory that a piece of work uses. Atomic additions may meet each other, and nothing else.
struct MemoryUse {
  enum class Kind : uint8_t { kRead, kAdd, kWrite };

  uintptr_t begin = 0;
  uintptr_t end = 0;
  Kind kind = Kind::kRead;

  bool empty() const { return begin == end; }
  bool overlaps(const MemoryUse& other) const { return begin < other.end && other.begin < end; }
  bool covers(const MemoryUse& other) const { return begin <= other.begin && other.end <= end; }
  bool may_meet(const MemoryUse& other) const {
    return !overlaps(other) || (kind == other.kind && kind != Kind::kWrite);
  }
};
inline MemoryUse use_of(const void* data, int64_t bytes, MemoryUse::Kind kind) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + static_cast<uintptr_t>(bytes), kind};
}
inline MemoryUse reads(ConstBuffer buffer) { return use_of(buffer.data, buffer.bytes(), MemoryUse::Kind::kRead); }
inline MemoryUse writes(ConstBuffer buffer) { return use_of(buffer.data, buffer.bytes(), MemoryUse::Kind::kWrite); }
inline MemoryUse reads(const void* data, int64_t bytes) { return use_of(data, bytes, MemoryUse::Kind::kRead); }
inline MemoryUse writes(const void* data, int64_t bytes) { return use_of(data, bytes, MemoryUse::Kind::kWrite); }
inline MemoryUse adds_to(const void* data, int64_t bytes) { return use_of(data, bytes, MemoryUse::Kind::kAdd); }

// Vector clocks. Two uses of the same memory, one of them a write, conflict unless one is known to come first: because
// both are on one stream, because events order their streams, or because the host waited between them. A missing order
// is found whenever the work is enqueued, whatever the timing.
class StreamOrder {
 public:
  // For each stream, how many pieces of its work come before.
  using Clock = std::map<int, int64_t>;

  // All that is on a stream now, and all that comes before it.
  const Clock& now(int stream) { return clocks_[stream]; }

  // What is added to `stream` from now on comes after what `clock` was taken of.
  void wait(int stream, const Clock& clock) { merge(clock, clocks_[stream]); }

  // What is added to any stream from now on comes after what is on `stream` now: the host waited for it.
  void host_waits_for(int stream) { merge(clocks_[stream], host_); }

  // Whether `stream` comes after all that is on `other`.
  bool is_after(int stream, int other) { return clocks_[stream][other] == clocks_[other][other]; }

  // Adds work to a stream. Returns a sentence for each earlier work that it conflicts with.
  std::vector<std::string> add(int stream, const std::string& what, const std::vector<MemoryUse>& uses) {
    Clock& clock = clocks_[stream];
    merge(host_, clock);
    const int64_t number = ++clock[stream];
    std::vector<std::string> conflicts;
    for (const MemoryUse& use : uses) {
      if (!use.empty()) {
        find_conflicts({use, stream, number, what}, clock, conflicts);
      }
    }
    return conflicts;
  }

 private:
  struct Past {
    MemoryUse use;
    int stream = 0;
    int64_t number = 0;
    std::string what;
  };

  static void merge(const Clock& from, Clock& into) {
    for (const auto& [stream, count] : from) {
      into[stream] = std::max(into[stream], count);
    }
  }

  void find_conflicts(const Past& next, Clock& clock, std::vector<std::string>& conflicts) {
    const auto is_before = [&](const Past& past) { return clock[past.stream] >= past.number; };
    for (const Past& past : past_) {
      if (!past.use.may_meet(next.use) && !is_before(past)) {
        conflicts.push_back("nothing orders \"" + next.what + "\" on stream " + std::to_string(next.stream) +
                            " after \"" + past.what + "\" on stream " + std::to_string(past.stream) +
                            ", and both use the same memory");
      }
    }
    // What comes after `next` comes after these, too.
    std::erase_if(past_, [&](const Past& past) {
      const bool replaces =
          next.use.kind == MemoryUse::Kind::kWrite || (next.use.kind == past.use.kind && next.stream == past.stream);
      return replaces && next.use.covers(past.use) && is_before(past);
    });
    past_.push_back(next);
  }

  std::map<int, Clock> clocks_;
  Clock host_;
  std::vector<Past> past_;
};

}  // namespace isthmus::test
