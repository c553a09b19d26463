// Which process made an object.
#pragma once

#include <sys/types.h>

namespace isthmus::torch_backend {

// Remembers the process that it is constructed in. A child that is forked from that has a copy of everything but the
// threads, and shares the connections: what needs either cannot be used there.
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
