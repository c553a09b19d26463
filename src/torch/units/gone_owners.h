// Owners of units and weights are Python objects. This tells groups which of them were collected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace isthmus::torch_backend {

// Tells one listener which owners have gone. Any thread may call any method.
class GoneOwners {
 public:
  // Notes that Python collected this owner; its number is never reused in this process. Groups free the owner's state
  // at their next call, for which this does not wait.
  static void add(uint64_t owner) {
    const std::lock_guard lock(all().mutex);
    all().owners.push_back(owner);
  }

  // Returns the owners that have gone since the last call.
  std::set<uint64_t> take() {
    const std::lock_guard lock(all().mutex);
    const auto& owners = all().owners;
    return {owners.begin() + static_cast<std::ptrdiff_t>(std::exchange(seen_, owners.size())), owners.end()};
  }

 private:
  // The owners of this process, in the order in which they went.
  struct All {
    std::mutex mutex;
    std::vector<uint64_t> owners;
  };
  static All& all() {
    static auto* all = new All;  // never destroyed: Python may collect objects after static objects are gone
    return *all;
  }

  size_t seen_ = 0;  // how many owners take() has returned so far; under All's mutex
};

}  // namespace isthmus::torch_backend
