// isthmus::Options in the form that torch.distributed passes around.
#pragma once

#include <torch/headeronly/version.h>

#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "isthmus/options.h"

namespace isthmus::torch_backend {

inline constexpr const char* kBackendName = "isthmus";

// Bound as isthmus.Options. Value-like: copies share nothing.
struct BackendOptions final : c10d::Backend::Options {
  explicit BackendOptions(isthmus::Options option_values) : Options(kBackendName), values(std::move(option_values)) {}

  // Torch copies options when it splits a group. The base class declares this virtual since 2.15 at the latest.
  c10::intrusive_ptr<c10d::Backend::Options> clone() const
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
      override
#endif
  {
    return c10::make_intrusive<BackendOptions>(*this);
  }

  isthmus::Options values;
  std::set<std::string> given;  // names of the options that were set, by variable, keyword or attribute
};

}  // namespace isthmus::torch_backend
