// Which process made an object.
#pragma once

#include <sys/types.h>

namespace isthmus::torch_backend {

// Remembers the process that it is constructed in. A forked child has no threads of its parent and shares its
// connections: whatever needs either cannot be used there.
class OwnProcess {
 public:
  OwnProcess();
  bool is_this() const;
  // Throws DistBackendError in a forked child.
  void require_this() const;

 private:
  pid_t id_;
};

}  // namespace isthmus::torch_backend
