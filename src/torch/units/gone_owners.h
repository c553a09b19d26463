// Owners of units and weights are Python objects. This tells groups which of them were collected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>

namespace isthmus::torch_backend {

// Notes that Python collected this owner; its number is never reused in this process. Groups free the owner's state at
// their next call. Any thread may call this; it does not wait for groups.
void forget_owner(uint64_t owner);

// Tells one listener which owners have gone.
class GoneOwners {
 public:
  // Returns the owners that have gone since the last call. Any thread may call it.
  std::set<uint64_t> take();

 private:
  std::mutex mutex_;
  size_t seen_ = 0;  // how many owners take() has returned so far
};

}  // namespace isthmus::torch_backend
