#include "isthmus/node_map.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include "isthmus/error.h"

namespace isthmus {
namespace {

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    return std::nullopt;
  }
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) {
      return parts;
    }
    begin = end + 1;
  }
}

// Parses "2x4".
NodeMap parse_grid(const std::string& text, int world_size) {
  const size_t cross = text.find('x');
  const auto nodes = parse_number(std::string_view(text).substr(0, cross));
  const auto ranks = parse_number(std::string_view(text).substr(cross + 1));
  ISTHMUS_CHECK(OptionError, nodes && ranks && *nodes > 0 && *ranks > 0, "nodes \"", text,
                "\": expected NODESxRANKS, two positive numbers, as in \"2x4\"");
  ISTHMUS_CHECK(OptionError, static_cast<int64_t>(*nodes) * *ranks == world_size, "nodes \"", text, "\" makes ",
                static_cast<int64_t>(*nodes) * *ranks, " ranks, but the group has ", world_size);
  std::vector<int> node_of_rank(static_cast<size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    node_of_rank[rank] = rank / *ranks;
  }
  return NodeMap(node_of_rank);
}

// Parses "0,1|2,3".
NodeMap parse_lists(const std::string& text, int world_size) {
  constexpr int kUnplaced = -1;
  std::vector<int> node_of_rank(static_cast<size_t>(world_size), kUnplaced);
  int node = 0;
  for (const std::string_view ranks : split(text, '|')) {
    for (const std::string_view word : split(ranks, ',')) {
      const auto rank = parse_number(word);
      ISTHMUS_CHECK(OptionError, rank, "nodes \"", text, "\": \"", word,
                    "\" is not a rank; expected \"2x4\" or ranks listed node by node, as in \"0,1|2,3\"");
      ISTHMUS_CHECK(OptionError, *rank < world_size, "nodes \"", text, "\": rank ", *rank, " is not in 0..",
                    world_size - 1);
      ISTHMUS_CHECK(OptionError, node_of_rank[*rank] == kUnplaced, "nodes \"", text, "\": rank ", *rank,
                    " is listed twice");
      node_of_rank[*rank] = node;
    }
    ++node;
  }
  const auto unplaced = std::find(node_of_rank.begin(), node_of_rank.end(), kUnplaced);
  ISTHMUS_CHECK(OptionError, unplaced == node_of_rank.end(), "nodes \"", text, "\": rank ",
                unplaced - node_of_rank.begin(), " of 0..", world_size - 1, " is missing");
  return NodeMap(node_of_rank);
}

}  // namespace

NodeMap::NodeMap(const std::vector<int>& node_of_rank) {
  ISTHMUS_CHECK(OptionError, !node_of_rank.empty(), "a node map needs at least one rank");
  std::map<int, int> node_of_label;  // in order of first appearance, so by lowest rank
  for (int rank = 0; rank < static_cast<int>(node_of_rank.size()); ++rank) {
    const auto [entry, is_new] = node_of_label.try_emplace(node_of_rank[rank], static_cast<int>(ranks_.size()));
    if (is_new) {
      ranks_.emplace_back();
    }
    const int node = entry->second;
    node_of_rank_.push_back(node);
    local_index_.push_back(static_cast<int>(ranks_[node].size()));
    ranks_[node].push_back(rank);
  }
  even_ = std::all_of(ranks_.begin(), ranks_.end(),
                      [&](const std::vector<int>& node) { return node.size() == ranks_.front().size(); });
  block_placement_ = even_ && std::is_sorted(node_of_rank_.begin(), node_of_rank_.end());
}

NodeMap NodeMap::parse(const std::string& text, int world_size) {
  ISTHMUS_CHECK(OptionError, world_size > 0, "nodes \"", text, "\": the group has ", world_size, " ranks");
  return text.find('x') != std::string::npos ? parse_grid(text, world_size) : parse_lists(text, world_size);
}

std::vector<int> NodeMap::rail_ranks(int local_index) const {
  std::vector<int> ranks;
  ranks.reserve(ranks_.size());
  for (const std::vector<int>& node : ranks_) {
    ranks.push_back(node[local_index]);
  }
  return ranks;
}

std::vector<int> NodeMap::all_ranks() const {
  std::vector<int> ranks(node_of_rank_.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void NodeMap::require_even() const {
  ISTHMUS_CHECK(OptionError, even_, "nodes ", to_string(),
                ": the two-tier paths need equally many ranks on every node");
}

std::string NodeMap::to_string() const {
  if (block_placement_) {
    return detail::concatenate(num_nodes(), num_nodes() == 1 ? " node x " : " nodes x ", ranks_per_node(),
                               ranks_per_node() == 1 ? " rank" : " ranks", ", in blocks");
  }
  std::string text;
  for (const std::vector<int>& node : ranks_) {
    for (const int rank : node) {
      text += std::to_string(rank) + ',';
    }
    text.back() = '|';
  }
  text.pop_back();
  return text;
}

}  // namespace isthmus
