// Which process made an object.
#pragma once

#include <sys/types.h>

namespace isthmus::torch_backend {

// Remembers the process that constructs it. A forked child has none of its parent's threads and shares its connections,
// so it cannot use what needs either.
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
