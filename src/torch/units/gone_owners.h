// Owners of units and of weights that are gone: Python's objects that were collected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>

namespace isthmus::torch_backend {

// The owner, a number of this process that is never given again, is gone: what groups keep of it is freed at their next
// call. From any thread; waits for nothing.
void forget_owner(uint64_t owner);

// Tells one listener of each owner that goes.
class GoneOwners {
 public:
  // Those that went since it was last asked. From any thread.
  std::set<uint64_t> take();

 private:
  std::mutex mutex_;
  size_t seen_ = 0;  // how many forget_owner() were told
};

}  // namespace isthmus::torch_backend
