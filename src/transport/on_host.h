// What transports on the CPU share.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/transport.h"

namespace isthmus {

// The handle of an operation that is done when the call returns.
class CompletedHandle final : public Handle {
 public:
  void wait(Stream /*stream*/) override {}
};

inline size_t count_nodes(const std::vector<int>& node_of_rank) {
  return std::set<int>(node_of_rank.begin(), node_of_rank.end()).size();
}

// Whether some links of a tier are within a node, and others between nodes.
inline bool has_links_of_both_kinds(const std::vector<int>& node_of_rank) {
  const size_t num_nodes = count_nodes(node_of_rank);
  return num_nodes > 1 && num_nodes < node_of_rank.size();
}

// The answer of Transport::ranks_of_other_label(). labels, global_ranks: by rank of the tier.
inline std::string name_of_other_labels(uint64_t own, const std::vector<uint64_t>& labels,
                                        const std::vector<int>& global_ranks) {
  std::string names;
  for (size_t rank = 0; rank < labels.size(); ++rank) {
    if (labels[rank] != own) {
      names += (names.empty() ? "rank " : ", rank ") + std::to_string(global_ranks[rank]);
    }
  }
  return names;
}

}  // namespace isthmus
