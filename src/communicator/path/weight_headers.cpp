#include "communicator/path/weight_headers.h"

#include <algorithm>
#include <map>

#include "isthmus/error.h"

namespace isthmus {

void check_weight_headers(const std::vector<WeightHeader>& headers, ConstBuffer shard) {
  // Headers are compared with that of a rank that counted the unit's gathers, or with any if none did.
  const auto has_replica = [](const WeightHeader& header) { return header.has_replica != 0; };
  const auto counted = std::find_if(headers.begin(), headers.end(), has_replica);
  const WeightHeader& first = counted != headers.end() ? *counted : headers.front();
  const auto most = static_cast<uint64_t>(WeightPackets::most_bytes(shard));
  for (size_t node = 0; node < headers.size(); ++node) {
    const WeightHeader& header = headers[node];
    const auto expect_equal = [&](const char* what, uint64_t value, uint64_t expected) {
      ISTHMUS_CHECK(PacketError, value == expected, "weights of node ", node, " have ", what, " ", value, ", where ",
                    expected, " is expected (unit ", first.unit_hash, ", gather ", first.gather,
                    "): the ranks do not gather the same weights in the same order, or the header is corrupt");
    };
    expect_equal("magic", header.magic, WeightHeader::kMagic);
    expect_equal("version", header.version, WeightHeader::kVersion);  // first: it decides what a checksum is
    ISTHMUS_CHECK(PacketError, header.is_whole(), "corrupt header of the weights of node ", node);
    expect_equal("sending node", header.sender, node);
    expect_equal("unit", header.unit_hash, first.unit_hash);
    expect_equal("dtype", static_cast<uint64_t>(header.dtype), static_cast<uint64_t>(first.dtype));
    expect_equal("number of elements", header.num_elements, first.num_elements);
    expect_equal("gather", has_replica(header) ? header.gather : first.gather, first.gather);
    expect_equal("odd bytes", header.packet_bytes % 8, 0);
    ISTHMUS_CHECK(PacketError, header.packet_bytes <= most, "weights of node ", node, " take ", header.packet_bytes,
                  " bytes, where ", most, " is the most");
  }
}

std::string differing_replicas(const std::vector<WeightHeader>& headers) {
  // The report takes the most frequent replica for the right one; all replicas are replaced anyway.
  std::map<uint64_t, size_t> nodes_with;
  for (const WeightHeader& header : headers) {
    ++nodes_with[header.replica_checksum];
  }
  if (nodes_with.size() == 1) {
    return "";
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [usual, most] = *std::max_element(nodes_with.begin(), nodes_with.end(), fewer);
  if (2 * most <= headers.size()) {
    return "replicas had other bits on each node";
  }
  std::string nodes;
  for (const WeightHeader& header : headers) {
    nodes += header.replica_checksum == usual ? "" : (nodes.empty() ? "" : ", ") + std::to_string(header.sender);
  }
  return "the replica of node " + nodes + " had other bits than the others'";
}

}  // namespace isthmus
