// Which rank sits on which node. python/isthmus/group/nodes finds the map.
#pragma once

#include <string>
#include <vector>

namespace isthmus {

// The ranks of one group, sorted into nodes. A node is a set of ranks that share fast links. Nodes are numbered by
// their lowest rank, and ranks within a node by rank ("local index"). Ranks with one local index form a rail. A NodeMap
// is immutable, so any thread may read it.
class NodeMap {
 public:
  // node_of_rank[r] labels rank r's node; ranks with equal labels share a node. Throws OptionError if it is empty.
  explicit NodeMap(const std::vector<int>& node_of_rank);

  // "2x4": 2 nodes of 4 ranks, in blocks. "0,1|2,3": ranks listed node by node, each rank exactly once. Throws
  // OptionError that names the text, the world size and the mismatch.
  static NodeMap parse(const std::string& text, int world_size);

  int world_size() const { return static_cast<int>(node_of_rank_.size()); }
  int num_nodes() const { return static_cast<int>(ranks_.size()); }
  // Requires even().
  int ranks_per_node() const { return static_cast<int>(ranks_.front().size()); }
  // Whether all nodes have equally many ranks. If not, there are no rails, and every reduction takes the exact path.
  bool even() const { return even_; }
  // Throws OptionError that names the nodes, unless even().
  void require_even() const;
  // Whether the two-tier paths exist: there are several nodes, all of one size.
  bool two_tier() const { return even_ && num_nodes() > 1; }
  // Whether rank n * ranks_per_node + l has local index l on node n, so that the chunks of a node are contiguous.
  bool block_placement() const { return block_placement_; }

  int node(int rank) const { return node_of_rank_[rank]; }
  int local_index(int rank) const { return local_index_[rank]; }
  int rank(int node, int local_index) const { return ranks_[node][local_index]; }
  // The place of the rank's chunk once chunks are sorted node by node. Requires even().
  int position(int rank) const { return node(rank) * ranks_per_node() + local_index(rank); }
  // The ranks of one node, ascending; the ranks of one rail, by node. Only rail_ranks() requires even().
  const std::vector<int>& node_ranks(int node) const { return ranks_[node]; }
  std::vector<int> rail_ranks(int local_index) const;
  std::vector<int> all_ranks() const;  // 0, 1, ...
  const std::vector<int>& node_of_rank() const { return node_of_rank_; }

  // "2 nodes x 4 ranks, in blocks" or "0,1|2,3,4", for logs and errors.
  std::string to_string() const;

 private:
  std::vector<int> node_of_rank_;
  std::vector<int> local_index_;
  std::vector<std::vector<int>> ranks_;
  bool even_ = false;
  bool block_placement_ = false;
};

}  // namespace isthmus
