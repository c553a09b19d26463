// Errors of torch.distributed.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace isthmus::torch_backend {

// torch.distributed.DistBackendError
inline std::exception_ptr dist_error(const std::string& text) {
  try {
    TORCH_CHECK_WITH(DistBackendError, false, text);
  } catch (...) {
    return std::current_exception();
  }
}

// "what failed", without the places in sources that torch appends.
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace isthmus::torch_backend
