#include "communicator/path/two_tier_path.h"

#include <algorithm>
#include <vector>

#include "communicator/path/tier_operations.h"

namespace isthmus {

// Each segment of the pieces is encoded while the one before it crosses.
void TwoTierPath::reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const {
  const ConstBuffer pieces = sum_within_node(run, gradient);
  const EventPtr summed = run.event();
  const std::vector<Segment> segments = segments_of(shard.num_elements, options_.segments);
  std::vector<Crossing> crossings;
  for (const Segment& segment : segments) {
    const Buffer packets = encode(run, plan, pieces, summed, segment);
    crossings.push_back(exchange_along_rail(run, packets, segment));
  }
  const Buffer sum = run.sum_target(shard);
  for (Crossing& crossing : crossings) {
    decode_sum(run, plan, pieces, crossing, sum);
  }
  device_.convert_scaled(sum, plan.scale, shard, run.tail());
}

// For each node the piece that its rank of this rail owns, summed over this node.
ConstBuffer TwoTierPath::sum_within_node(Run& run, ConstBuffer gradient) const {
  const NodeMap& map = tiers_.map();
  const DataType dtype = tiers_.piece_type(device_, gradient.dtype).dtype;
  if (map.ranks_per_node() == 1 && gradient.dtype == dtype) {
    return gradient;
  }
  if (!map.block_placement()) {
    run.counters.packed_calls = 1;
    run.set_phase("pack");
    run.enter(Lane::kIntra);
    const Buffer packed = run.take(gradient.num_elements, gradient.dtype);
    reorder(
        device_, map, gradient, packed, [](int rank) { return rank; }, [&map](int rank) { return map.position(rank); },
        run.tail());
    gradient = packed;
  }
  const Step step(run, "intra reduce-scatter", Lane::kIntra, &CollectiveStats::intra_s);
  const Buffer pieces = run.take(gradient.num_elements / map.ranks_per_node(), dtype);
  if (map.ranks_per_node() == 1) {
    device_.convert(gradient, pieces, run.tail());
    return pieces;
  }
  const int64_t piece_elements = pieces.num_elements / map.num_nodes();
  start_group(tiers_.intra(), map.num_nodes(), run.tail(), [&](int owner) {
    const ConstBuffer chunks = gradient.part(owner, map.ranks_per_node() * piece_elements);
    return tiers_.intra().reduce_scatter(chunks, pieces.part(owner, piece_elements), run.tail());
  });
  return pieces;
}

// One packet for each other node, at that node's place. This node's own place stays unused, unless the own piece is
// coded, too.
Buffer TwoTierPath::encode(Run& run, const ReductionPlan& plan, ConstBuffer pieces, const EventPtr& summed,
                           const Segment& segment) const {
  const Step step(run, "encode", Lane::kEncode, summed, &CollectiveStats::encode_s);
  Codec& codec = *plan.codec;
  const int64_t piece_elements = pieces.num_elements / tiers_.num_nodes();
  const int64_t packet_bytes = codec.packet_bytes(segment.num_elements);
  const Buffer packets = run.take(tiers_.num_nodes() * packet_bytes, DataType::kByte);
  const Workspace workspace = run.workspace(codec.encode_scratch_bytes(segment.num_elements));
  const PacketContext context = coder_.context_for(run, plan, PacketUse::kPiece, tiers_.node(), segment.index);
  int residual_index = 0;
  for (int owner = 0; owner < tiers_.num_nodes(); ++owner) {
    if (owner == tiers_.node() && !codes_own_piece()) {
      continue;
    }
    const ConstBuffer piece = pieces.part(owner, piece_elements).slice(segment.begin, segment.num_elements);
    const Buffer residual =
        plan.has_residual()
            ? plan.unit->residual.part(residual_index++, piece_elements).slice(segment.begin, segment.num_elements)
            : Buffer{};
    coder_.encode(run, plan, codec, piece, residual, packets.part(owner, packet_bytes), context, workspace);
    if (owner != tiers_.node()) {
      run.coded_elements += segment.num_elements;
      run.packet_bytes += packet_bytes;
    }
  }
  if (segment.is_last) {
    coder_.count_packets(run, plan, PacketUse::kPiece);
  }
  return packets;
}

TwoTierPath::Crossing TwoTierPath::exchange_along_rail(Run& run, Buffer packets, const Segment& segment) const {
  Crossing crossing{&segment, packets, packets, nullptr, nullptr};
  if (tiers_.num_nodes() > 1) {
    const Step step(run, "inter exchange", Lane::kInter, &CollectiveStats::exchange_s);
    crossing.arrived = run.take(packets.num_elements, DataType::kByte);
    crossing.handle = tiers_.inter().all_to_all(packets, crossing.arrived, run.tail());
  }
  crossing.done = run.event();
  return crossing;
}

// The own piece, and what arrived from the other nodes, in their order.
void TwoTierPath::decode_sum(Run& run, const ReductionPlan& plan, ConstBuffer pieces, Crossing& crossing,
                             Buffer sum) const {
  wait_on_host(run, crossing);
  const Step step(run, "decode", Lane::kDecode, crossing.done, &CollectiveStats::decode_s);
  Codec& codec = *plan.codec;
  const Segment& segment = *crossing.segment;
  const int64_t packet_bytes = crossing.arrived.num_elements / tiers_.num_nodes();
  const Buffer sum_of_segment = sum.slice(segment.begin, segment.num_elements);
  const int node = tiers_.node();
  const int below = node;
  const int above = tiers_.num_nodes() - node - 1;
  const Workspace workspace =
      run.workspace(codec.decode_scratch_bytes(segment.num_elements, std::max({below, above, 1})));
  PacketContext context = coder_.context_for(run, plan, PacketUse::kArrivedPiece, 0, segment.index);
  const auto add = [&](ConstBuffer packets, int first_node, int num_packets) {
    context.sender = static_cast<uint16_t>(first_node);
    run.codec_counts += codec.decode_sum(packets, num_packets, sum_of_segment, context, workspace);
  };
  if (codes_own_piece()) {
    device_.clear(sum_of_segment, run.tail());
    add(crossing.packets.part(node, packet_bytes), node, 1);
  } else {
    const ConstBuffer own_piece = pieces.part(node, pieces.num_elements / tiers_.num_nodes());
    device_.convert(own_piece.slice(segment.begin, segment.num_elements), sum_of_segment, run.tail());
  }
  add(crossing.arrived.slice(0, below * packet_bytes), 0, below);
  add(crossing.arrived.slice((node + 1) * packet_bytes, above * packet_bytes), node + 1, above);
  if (segment.is_last) {
    coder_.count_packets(run, plan, PacketUse::kArrivedPiece);
  }
}

// On a GPU the lane waits, and the host does not.
void TwoTierPath::wait_on_host(Run& run, Crossing& crossing) const {
  if (crossing.handle != nullptr && device_.is_host()) {
    const Step step(run, "inter exchange", Lane::kInter, crossing.done, &CollectiveStats::exchange_s);
    crossing.handle->wait(run.tail());
  }
}

}  // namespace isthmus
