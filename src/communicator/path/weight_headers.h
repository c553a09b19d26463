// What the headers of a rail's weights say together.
#pragma once

#include <string>
#include <vector>

#include "codec/weights/weight_packet.h"
#include "isthmus/buffer.h"

namespace isthmus {

// headers: by node. Throws PacketError where one is corrupt, or they do not belong to one gather of such a shard.
void check_weight_headers(const std::vector<WeightHeader>& headers, ConstBuffer shard);

// Which nodes' replicas have other bits than most nodes' have, for people; empty: all that were compared are equal.
std::string differing_replicas(const std::vector<WeightHeader>& headers);

}  // namespace isthmus
