// Compares the headers that the ranks of a rail send before weights.
#pragma once

#include <string>
#include <vector>

#include "codec/weights/weight_packet.h"
#include "isthmus/buffer.h"

namespace isthmus {

// headers: by node. Throws PacketError if one is corrupt, or they do not belong to one gather of a shard like this.
void check_weight_headers(const std::vector<WeightHeader>& headers, ConstBuffer shard);

// Names the nodes whose replicas differ from most nodes' ones; empty: all compared replicas are equal.
std::string differing_replicas(const std::vector<WeightHeader>& headers);

}  // namespace isthmus
