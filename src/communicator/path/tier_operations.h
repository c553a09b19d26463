// Helpers for operations on tiers.
#pragma once

#include <exception>
#include <vector>

#include "isthmus/device.h"
#include "isthmus/node_map.h"
#include "isthmus/transport.h"

namespace isthmus {

// out[to(r)] = in[from(r)] for every rank r's equal part. One side is in rank order, the other node by node.
template <typename From, typename To>
void reorder(Device& device, const NodeMap& map, ConstBuffer in, Buffer out, From from, To to, Stream stream) {
  const int64_t part_elements = in.num_elements / map.world_size();
  for (int rank = 0; rank < map.world_size(); ++rank) {
    device.convert(in.part(from(rank), part_elements), out.part(to(rank), part_elements), stream);
  }
}

// Starts `count` operations of a tier as one and waits for all of them. start(i) starts the i-th.
template <typename Start>
void start_group(Transport& tier, int count, Stream stream, const Start& start) {
  std::vector<HandlePtr> pending;
  tier.begin_group();
  try {
    for (int i = 0; i < count; ++i) {
      pending.push_back(start(i));
    }
  } catch (...) {
    try {
      tier.end_group();
    } catch (const std::exception&) {  // the first error is thrown, later ones are dropped
    }
    throw;
  }
  tier.end_group();
  for (const HandlePtr& handle : pending) {
    handle->wait(stream);
  }
}

}  // namespace isthmus
