// Which rank sits on which node. topology/node_map.py finds the map.
#pragma once

#include <string>
#include <vector>

namespace isthmus {

// The ranks of one group, sorted into nodes. A node is a set of ranks that share fast links; nodes are numbered by
// their lowest rank, ranks within a node by rank ("local index"). Ranks of one local index form a rail.
// Immutable after construction; safe to read from any thread.
class NodeMap {
 public:
  // node_of_rank[r]: any label of rank r's node; equal labels are one node. Throws OptionError if it is empty.
  explicit NodeMap(const std::vector<int>& node_of_rank);

  // "2x4": 2 nodes of 4 ranks, in blocks. "0,1|2,3": ranks listed node by node, every rank exactly once.
  // Throws OptionError naming the text, the world size and what does not match.
  static NodeMap parse(const std::string& text, int world_size);

  int world_size() const { return static_cast<int>(node_of_rank_.size()); }
  int num_nodes() const { return static_cast<int>(ranks_.size()); }
  // Ranks a node. Only if even().
  int ranks_per_node() const { return static_cast<int>(ranks_.front().size()); }
  // All nodes have equally many ranks. Otherwise there are no rails, and every reduction takes the exact path.
  bool even() const { return even_; }
  // Throws OptionError, naming the nodes, unless even().
  void require_even() const;
  // More than one node, all of one size: the two-tier paths exist.
  bool two_tier() const { return even_ && num_nodes() > 1; }
  // Rank n * ranks_per_node + l sits on node n with local index l: chunks of one node are contiguous.
  bool block_placement() const { return block_placement_; }

  int node(int rank) const { return node_of_rank_[rank]; }
  int local_index(int rank) const { return local_index_[rank]; }
  int rank(int node, int local_index) const { return ranks_[node][local_index]; }
  // Where the rank's chunk stands once chunks are sorted node by node. Only if even().
  int position(int rank) const { return node(rank) * ranks_per_node() + local_index(rank); }
  // The ranks of one node, ascending; the ranks of one rail, by node. Only the latter needs even().
  const std::vector<int>& node_ranks(int node) const { return ranks_[node]; }
  std::vector<int> rail_ranks(int local_index) const;
  const std::vector<int>& node_of_rank() const { return node_of_rank_; }

  // "2 nodes x 4 ranks, in blocks" / "0,1|2,3,4": what logs and errors print.
  std::string to_string() const;

 private:
  std::vector<int> node_of_rank_;
  std::vector<int> local_index_;
  std::vector<std::vector<int>> ranks_;
  bool even_ = false;
  bool block_placement_ = false;
};

}  // namespace isthmus
