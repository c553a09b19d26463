#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "isthmus/error.h"
#include "isthmus/node_map.h"
#include "tests/cpp/support/error_of.h"

namespace isthmus {
namespace {

std::string parse_error(const std::string& text, int world_size) {
  return test::error_of<OptionError>([&] { NodeMap::parse(text, world_size); });
}

TEST(NodeMap, BlocksFromGrid) {
  const NodeMap map = NodeMap::parse("2x4", 8);
  EXPECT_EQ(map.world_size(), 8);
  EXPECT_EQ(map.num_nodes(), 2);
  EXPECT_EQ(map.ranks_per_node(), 4);
  EXPECT_TRUE(map.two_tier());
  EXPECT_TRUE(map.block_placement());
  EXPECT_EQ(map.node(5), 1);
  EXPECT_EQ(map.local_index(5), 1);
  EXPECT_EQ(map.position(5), 5);
  EXPECT_EQ(map.rank(1, 1), 5);
  EXPECT_EQ(map.node_ranks(1), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(map.rail_ranks(3), (std::vector<int>{3, 7}));
  EXPECT_EQ(map.to_string(), "2 nodes x 4 ranks, in blocks");
}

TEST(NodeMap, CyclicPlacementIsNotInBlocks) {
  const NodeMap map({7, 3, 7, 3});  // any labels
  EXPECT_TRUE(map.two_tier());
  EXPECT_FALSE(map.block_placement());
  EXPECT_EQ(map.node_of_rank(), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(map.rail_ranks(1), (std::vector<int>{2, 3}));
  EXPECT_EQ(map.position(2), 1);
  EXPECT_EQ(map.to_string(), "0,2|1,3");
}

TEST(NodeMap, NodesAreNumberedByLowestRankInAnyOrderOfTheText) {
  const NodeMap map = NodeMap::parse("2,3|1,0", 4);
  EXPECT_EQ(map.node_of_rank(), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(map.node_ranks(0), (std::vector<int>{0, 1}));
  EXPECT_TRUE(map.block_placement());
}

TEST(NodeMap, ArbitraryPlacementIsItsOwnText) {
  const std::string text = "0,4,5|1,2,8|3,6,7";
  EXPECT_EQ(NodeMap::parse(text, 9).to_string(), text);
}

TEST(NodeMap, UnevenNodesHaveNoRails) {
  const NodeMap map = NodeMap::parse("0,1|2,3,4", 5);
  EXPECT_FALSE(map.even());
  EXPECT_FALSE(map.two_tier());
  EXPECT_FALSE(map.block_placement());
  EXPECT_EQ(map.to_string(), "0,1|2,3,4");
}

TEST(NodeMap, OneNodeAndOneRank) {
  const NodeMap one_node = NodeMap::parse("1x4", 4);
  EXPECT_TRUE(one_node.even());
  EXPECT_FALSE(one_node.two_tier());
  EXPECT_EQ(one_node.to_string(), "1 node x 4 ranks, in blocks");
  const NodeMap one_rank = NodeMap::parse("0", 1);
  EXPECT_EQ(one_rank.num_nodes(), 1);
  EXPECT_EQ(one_rank.ranks_per_node(), 1);
  EXPECT_TRUE(NodeMap::parse("16x1", 16).two_tier());
}

TEST(NodeMap, RefusesInvalidMaps) {
  EXPECT_THROW(NodeMap(std::vector<int>{}), OptionError);
  EXPECT_EQ(parse_error("2x4", 6), "nodes \"2x4\" makes 8 ranks, but the group has 6");
  EXPECT_EQ(parse_error("0,1|1", 3), "nodes \"0,1|1\": rank 1 is listed twice");
  EXPECT_EQ(parse_error("0,1|3", 4), "nodes \"0,1|3\": rank 2 of 0..3 is missing");
  EXPECT_EQ(parse_error("0,4", 4), "nodes \"0,4\": rank 4 is not in 0..3");
  for (const char* text : {"", "x", "2x", "x4", "0x4", "-1x-4", "2x2x1", "2 x 2", "2.0x2", "0,1|", "0,,1", "0,1|2,3 ",
                           "a,b", "-1,0", "99999999999x1", "65536x65536"}) {
    EXPECT_NE(parse_error(text, 4), "") << text;
    EXPECT_NE(parse_error(text, 4).find(std::string("\"") + text + "\""), std::string::npos) << text;
  }
  EXPECT_NE(parse_error("1x0", 0), "");
}

}  // namespace
}  // namespace isthmus
