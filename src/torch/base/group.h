// The properties of a process group that never change.
#pragma once

#include <utility>
#include <vector>

#include "isthmus/error.h"
#include "isthmus/node_map.h"
#include "isthmus/options.h"
#include "torch/base/own_process.h"

namespace isthmus::torch_backend {

// Never changes: any thread reads it without a lock.
struct Group {
  // Throws Error if the map does not have `group_size` ranks.
  Group(int group_rank, int group_size, NodeMap nodes, isthmus::Options group_options, std::vector<int> ranks,
        bool has_own_worlds)
      : rank(group_rank),
        size(group_size),
        map(std::move(nodes)),
        options(std::move(group_options)),
        global_ranks(std::move(ranks)),
        owns_worlds(has_own_worlds) {
    ISTHMUS_CHECK(Error, map.world_size() == size, "a node map of ", map.world_size(), " ranks for a group of ", size);
  }

  bool two_tier() const { return map.two_tier(); }

  const OwnProcess process;  // the process that made the group
  const int rank;
  const int size;
  const NodeMap map;
  const isthmus::Options options;       // the values that all ranks agreed on
  const std::vector<int> global_ranks;  // by rank of the group
  // Whether the world backends are this group's own. Those of another group are called, and neither set up nor ended.
  const bool owns_worlds;
};

}  // namespace isthmus::torch_backend
