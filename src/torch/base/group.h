// What never changes in a process group, and its options as torch.distributed passes them around.
#pragma once

#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "isthmus/node_map.h"
#include "isthmus/options.h"

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

// Never changes: any thread reads it without a lock.
struct Group {
  const OwnProcess process = {};  // the process that made the group
  const int rank;
  const int size;
  const NodeMap map;
  const isthmus::Options options;       // the values that all ranks agreed on
  const std::vector<int> global_ranks;  // by rank of the group
  // Whether the world backends are this group's own. Those of another group are called, and neither set up nor ended.
  const bool owns_worlds;

  bool two_tier() const { return map.two_tier(); }
};

}  // namespace isthmus::torch_backend
