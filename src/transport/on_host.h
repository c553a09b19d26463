// What transports on the CPU share.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"
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

// See Transport::compare_units(). hashes, global_ranks: by rank of the tier.
inline void require_equal_units(uint64_t own, const std::string& unit, const std::vector<uint64_t>& hashes,
                                const std::vector<int>& global_ranks) {
  std::string others;
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] != own) {
      others += (others.empty() ? "rank " : ", rank ") + std::to_string(global_ranks[rank]);
    }
  }
  ISTHMUS_CHECK(PacketError, others.empty(), "unit \"", unit, "\": ", others,
                " reduces another unit, or other parameters of it: ", kWhyUnitsDiffer);
}

}  // namespace isthmus
