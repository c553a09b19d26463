// Which links a tier has.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

namespace isthmus {

inline size_t count_nodes(const std::vector<int>& node_of_rank) {
  return std::set<int>(node_of_rank.begin(), node_of_rank.end()).size();
}

// Whether some links of a tier are within a node, and others between nodes.
inline bool has_links_of_both_kinds(const std::vector<int>& node_of_rank) {
  const size_t num_nodes = count_nodes(node_of_rank);
  return num_nodes > 1 && num_nodes < node_of_rank.size();
}

}  // namespace isthmus
