#include "torch/base/own_process.h"

#include <c10/util/Exception.h>
#include <unistd.h>

namespace isthmus::torch_backend {

OwnProcess::OwnProcess() : id_(getpid()) {}

bool OwnProcess::is_this() const { return getpid() == id_; }

void OwnProcess::require_this() const {
  TORCH_CHECK_WITH(DistBackendError, is_this(),
                   "isthmus: this process was forked from the one that made this process group, and has no part in it. "
                   "Use the group in the process that made it, or start this one with spawn and make a group here");
}

}  // namespace isthmus::torch_backend
