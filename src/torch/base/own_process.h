// Which process made an object.
#pragma once

#include <c10/util/Exception.h>
#include <unistd.h>

namespace isthmus::torch_backend {

// Remembers the process that constructs it. A forked child has none of its parent's threads and shares its connections,
// so it cannot use what needs either.
class OwnProcess {
 public:
  bool is_this() const { return getpid() == id_; }
  // Throws DistBackendError in a forked child.
  void require_this() const {
    TORCH_CHECK_WITH(
        DistBackendError, is_this(),
        "isthmus: this process was forked from the one that made this process group, and has no part in it. Use the "
        "group in the process that made it, or start this one with spawn and make a group here");
  }

 private:
  pid_t id_ = getpid();
};

}  // namespace isthmus::torch_backend
