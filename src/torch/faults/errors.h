// Helpers for torch.distributed's errors.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace isthmus::torch_backend {

inline std::exception_ptr dist_error(const std::string& text) {
  try {
    TORCH_CHECK_WITH(DistBackendError, false, text);
  } catch (...) {
    return std::current_exception();
  }
}

// Drops the source locations that torch appends to an error's text.
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace isthmus::torch_backend
