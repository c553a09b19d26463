#include "communicator/path/two_tier_path.h"

#include <vector>

#include "communicator/path/tier_operations.h"

namespace isthmus {

// Each segment of the pieces is encoded while the one before it crosses. The own piece crosses no link: it is summed
// beside the exchange.
void TwoTierPath::reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const {
  const Pieces pieces = take_pieces(run, gradient);
  const EventPtr summed = sum_within_node(run, pieces, /*own=*/false, run.event());
  const std::vector<Segment> segments = segments_of(shard.num_elements, wanted_segments(plan, shard.num_elements));
  std::vector<Crossing> crossings;
  for (const Segment& segment : segments) {
    const Buffer packets = encode(run, plan, pieces.sums, summed, segment);
    crossings.push_back(exchange_along_rail(run, packets, segment));
  }
  const EventPtr own_summed = sum_within_node(run, pieces, /*own=*/true, summed);
  for (Crossing& crossing : crossings) {
    decode(run, plan, pieces.sums, own_summed, crossing, shard);
  }
}

// For each node the piece that its rank of this rail owns.
TwoTierPath::Pieces TwoTierPath::take_pieces(Run& run, ConstBuffer gradient) const {
  const NodeMap& map = tiers_.map();
  const DataType dtype = tiers_.piece_type(device_, gradient.dtype).dtype;
  if (map.ranks_per_node() == 1) {
    return {{}, one_rank_of_node(run, gradient, dtype)};
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
  run.set_phase("intra reduce-scatter");
  return {gradient, run.take(gradient.num_elements / map.ranks_per_node(), dtype)};
}

// The gradient itself, if it has the type of pieces.
Buffer TwoTierPath::one_rank_of_node(Run& run, ConstBuffer gradient, DataType dtype) const {
  if (gradient.dtype == dtype) {
    return {const_cast<void*>(gradient.data), gradient.num_elements, dtype};
  }
  const Step step(run, "intra reduce-scatter", Lane::kIntra, &CollectiveStats::intra_s);
  const Buffer pieces = run.take(gradient.num_elements, dtype);
  device_.convert(gradient, pieces, run.tail());
  return pieces;
}

// Sums this node's own piece, or those of all other nodes; the own one with them where there are no others. Begins
// after `ready`. Returns the event of the sums.
EventPtr TwoTierPath::sum_within_node(Run& run, const Pieces& pieces, bool own, const EventPtr& ready) const {
  const NodeMap& map = tiers_.map();
  const bool own_comes_later = map.num_nodes() > 1;
  std::vector<int> owners;
  for (int owner = 0; owner < map.num_nodes() && pieces.gradient.num_elements > 0; ++owner) {
    if (own == (own_comes_later && owner == tiers_.node())) {
      owners.push_back(owner);
    }
  }
  if (owners.empty()) {
    return ready;
  }
  const Step step(run, "intra reduce-scatter", Lane::kIntra, ready, &CollectiveStats::intra_s);
  const int64_t piece_elements = pieces.sums.num_elements / map.num_nodes();
  start_group(tiers_.intra(), static_cast<int>(owners.size()), run.tail(), [&](int i) {
    const ConstBuffer chunks = pieces.gradient.part(owners[i], map.ranks_per_node() * piece_elements);
    return tiers_.intra().reduce_scatter(chunks, pieces.sums.part(owners[i], piece_elements), run.tail());
  });
  return run.event();
}

// One packet for each other node, at that node's place. This node's own place stays unused.
Buffer TwoTierPath::encode(Run& run, const ReductionPlan& plan, ConstBuffer pieces, const EventPtr& summed,
                           const Segment& segment) const {
  const Step step(run, "encode", Lane::kEncode, summed, &CollectiveStats::encode_s);
  const int64_t packet_bytes = plan.codec->packet_bytes(segment.num_elements);
  const Buffer packets = run.take(tiers_.num_nodes() * packet_bytes, DataType::kByte);
  const PieceSet set = {.pieces = pieces,
                        .residuals = plan.has_residual() ? plan.unit->residual : Buffer{},
                        .packets = packets,
                        .num_nodes = tiers_.num_nodes(),
                        .left_out = tiers_.node(),
                        .begin = segment.begin,
                        .num_elements = segment.num_elements};
  const PacketContext context = coder_.context_for(plan, PacketUse::kPiece, tiers_.node(), segment.index);
  coder_.encode_pieces(run, plan, set, context, segment.is_last);
  const int num_foreign = tiers_.num_nodes() - 1;
  run.coded_elements += num_foreign * segment.num_elements;
  run.packet_bytes += num_foreign * packet_bytes;
  return packets;
}

TwoTierPath::Crossing TwoTierPath::exchange_along_rail(Run& run, Buffer packets, const Segment& segment) const {
  Crossing crossing{&segment, packets, nullptr, nullptr};
  if (tiers_.num_nodes() > 1) {
    const Step step(run, "inter exchange", Lane::kInter, &CollectiveStats::exchange_s);
    crossing.arrived = run.take(packets.num_elements, DataType::kByte);
    crossing.handle = tiers_.inter().all_to_all(packets, crossing.arrived, run.tail());
  }
  crossing.done = run.event();
  return crossing;
}

// The own piece, and what arrived from the other nodes, in their order.
void TwoTierPath::decode(Run& run, const ReductionPlan& plan, ConstBuffer pieces, const EventPtr& own_summed,
                         Crossing& crossing, Buffer shard) const {
  wait_on_host(run, crossing);
  const Step step(run, "decode", Lane::kDecode, crossing.done, &CollectiveStats::decode_s);
  device_.wait(own_summed, run.tail());
  const Segment& segment = *crossing.segment;
  const int node = tiers_.node();
  const ConstBuffer own_piece = pieces.part(node, pieces.num_elements / tiers_.num_nodes());
  const ShardSum sum = {.own = own_piece.slice(segment.begin, segment.num_elements),
                        .packets = crossing.arrived,
                        .num_nodes = tiers_.num_nodes(),
                        .node = node,
                        .scale = plan.scale,
                        .shard = shard.slice(segment.begin, segment.num_elements)};
  const PacketContext context = coder_.context_for(plan, PacketUse::kArrivedPiece, 0, segment.index);
  coder_.decode_shard(run, plan, sum, context, segment.is_last);
}

// On a GPU the lane waits, and the host does not.
void TwoTierPath::wait_on_host(Run& run, Crossing& crossing) const {
  if (crossing.handle != nullptr && device_.is_host()) {
    const Step step(run, "inter exchange", Lane::kInter, crossing.done, &CollectiveStats::exchange_s);
    crossing.handle->wait(run.tail());
  }
}

// As the options say, or 0: on the CPU by elements. On a GPU a segment costs launches, which packets must be worth.
int64_t TwoTierPath::wanted_segments(const ReductionPlan& plan, int64_t num_elements) const {
  if (options_.segments > 0 || device_.is_host()) {
    return options_.segments;
  }
  return segments_for_packets((tiers_.num_nodes() - 1) * plan.codec->packet_bytes(num_elements));
}

}  // namespace isthmus
