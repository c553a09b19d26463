#include "communicator/path/two_tier_path.h"

#include <vector>

namespace isthmus {

// Each segment is encoded while the one before it crosses. This node's own piece crosses no link: it is summed while
// packets are exchanged. Nothing is written to the shard before it is decoded.
void TwoTierPath::reduce_scatter(Run& run, const ReductionPlan& plan, ConstBuffer gradient, Buffer shard) const {
  const Pieces pieces = take_pieces(run, gradient);
  const EventPtr summed = sum_within_node(run, plan, pieces, /*own=*/false, run.event());
  const std::vector<Segment> segments = segments_of(shard.num_elements, wanted_segments(plan, shard.num_elements));
  std::vector<Crossing> crossings;
  for (const Segment& segment : segments) {
    const Buffer packets = encode(run, plan, pieces.sums, summed, segment);
    crossings.push_back(exchange_along_rail(run, packets, segment));
  }
  const EventPtr own_summed = sum_within_node(run, plan, pieces, /*own=*/true, summed);
  for (Crossing& crossing : crossings) {
    decode(run, plan, pieces.sums, own_summed, crossing, shard);
  }
}

// Takes, for each node, the piece that its rank on this rail owns.
TwoTierPath::Pieces TwoTierPath::take_pieces(Run& run, ConstBuffer gradient) const {
  const NodeMap& map = tiers_.map();
  const DataType dtype = tiers_.piece_type(device_, gradient.dtype).dtype;
  if (map.ranks_per_node() == 1) {
    return {{}, one_rank_of_node(run, gradient, dtype)};
  }
  if (!map.block_placement()) {
    run.counters.packed_calls = 1;
    run.set_phase(Phase::kPack);
    run.enter(Lane::kIntra);
    const Buffer packed = run.take(gradient.num_elements, gradient.dtype);
    reorder(gradient, packed, /*by_node=*/true, run.tail());
    gradient = packed;
  }
  run.set_phase(Phase::kIntraReduceScatter);
  return {gradient, run.take(gradient.num_elements / map.ranks_per_node(), dtype)};
}

// Returns the gradient itself if it already has the type of pieces.
Buffer TwoTierPath::one_rank_of_node(Run& run, ConstBuffer gradient, DataType dtype) const {
  if (gradient.dtype == dtype) {
    return {const_cast<void*>(gradient.data), gradient.num_elements, dtype};
  }
  const Step step(run, Phase::kIntraReduceScatter, Lane::kIntra, &CollectiveStats::intra_s);
  const Buffer pieces = run.take(gradient.num_elements, dtype);
  device_.convert(gradient, pieces, run.tail());
  return pieces;
}

// Sums either this node's own piece or those of all other nodes, after `ready`. With one node it sums the own piece for
// own=false. The first sums tell units, too. Returns the event of the sums.
EventPtr TwoTierPath::sum_within_node(Run& run, const ReductionPlan& plan, const Pieces& pieces, bool own,
                                      const EventPtr& ready) const {
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
  const Step step(run, Phase::kIntraReduceScatter, Lane::kIntra, &CollectiveStats::intra_s, ready);
  const int64_t piece_elements = pieces.sums.num_elements / map.num_nodes();
  std::function<HandlePtr()> tell;
  if (!own) {
    tell = [&] { return tell_unit(run, plan, tiers_.intra()); };
  }
  run_for_owners(tiers_.intra(), owners, run.tail(), tell, [&](int owner) {
    const ConstBuffer chunks = pieces.gradient.part(owner, map.ranks_per_node() * piece_elements);
    return tiers_.intra().reduce_scatter(chunks, pieces.sums.part(owner, piece_elements), run.tail());
  });
  return run.event();
}

// Makes one packet for each other node, at that node's place. This node's place stays unused.
Buffer TwoTierPath::encode(Run& run, const ReductionPlan& plan, ConstBuffer pieces, const EventPtr& summed,
                           const Segment& segment) const {
  const Step step(run, Phase::kEncode, Lane::kEncode, &CollectiveStats::encode_s, summed);
  const int64_t packet_bytes = plan.codecs.pieces->packet_bytes(segment.num_elements);
  const Buffer packets = run.take(tiers_.num_nodes() * packet_bytes, DataType::kByte);
  const PieceSet set = {.pieces = pieces,
                        .residuals = plan.has_residual() ? plan.unit->pieces.values : Buffer{},
                        .packets = packets,
                        .num_nodes = tiers_.num_nodes(),
                        .left_out = tiers_.node(),
                        .begin = segment.begin,
                        .num_elements = segment.num_elements};
  const PacketContext context = coder_.context_for(plan, PacketUse::kPiece, tiers_.node(), segment.index);
  coder_.encode_pieces(run, plan, set, context, segment.is_last);
  if (segment.index == 0) {
    refuse_other_units(run, plan, packets, tiers_.num_nodes());
  }
  const int num_foreign = tiers_.num_nodes() - 1;
  run.coded_elements += num_foreign * segment.num_elements;
  run.packet_bytes += num_foreign * packet_bytes;
  return packets;
}

TwoTierPath::Crossing TwoTierPath::exchange_along_rail(Run& run, Buffer packets, const Segment& segment) const {
  Crossing crossing{&segment, packets, nullptr, nullptr};
  if (tiers_.num_nodes() > 1) {
    const Step step(run, Phase::kInterExchange, Lane::kInter, &CollectiveStats::exchange_s);
    crossing.arrived = run.take(packets.num_elements, DataType::kByte);
    crossing.handle = tiers_.inter().all_to_all(packets, crossing.arrived, run.tail());
  }
  crossing.done = run.event();
  return crossing;
}

// Sums the own piece and the packets that arrived, in the order of nodes.
void TwoTierPath::decode(Run& run, const ReductionPlan& plan, ConstBuffer pieces, const EventPtr& own_summed,
                         Crossing& crossing, Buffer shard) const {
  wait_on_host(run, Phase::kInterExchange, crossing.handle, crossing.done);
  const Step step(run, Phase::kDecode, Lane::kDecode, &CollectiveStats::decode_s, crossing.done);
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

// options.segments; where it is 0, the CPU chooses by elements, and a GPU by bytes of packets, since a segment costs
// launches.
int64_t TwoTierPath::wanted_segments(const ReductionPlan& plan, int64_t num_elements) const {
  if (options_.segments > 0 || device_.is_host()) {
    return options_.segments;
  }
  return segments_for_packets((tiers_.num_nodes() - 1) * plan.codecs.pieces->packet_bytes(num_elements));
}

}  // namespace isthmus
