#include "communicator/path/two_tier_path.h"

#include <algorithm>
#include <exception>
#include <vector>

namespace isthmus {
namespace {

// Copies every rank's equal part from rank order to the order of nodes (by_node), or back.
void reorder(Device& device, const NodeMap& map, ConstBuffer in, Buffer out, bool by_node, Stream stream) {
  const int64_t part_elements = in.num_elements / map.world_size();
  for (int rank = 0; rank < map.world_size(); ++rank) {
    const int place = map.position(rank);
    device.convert(in.part(by_node ? rank : place, part_elements), out.part(by_node ? place : rank, part_elements),
                   stream);
  }
}

// Starts an operation of a tier for each owner, all as one, and waits for `first`, where it is not null, and for all.
template <typename Start>
void start_group(Transport& tier, const std::vector<int>& owners, Stream stream, HandlePtr first, const Start& start) {
  std::vector<HandlePtr> pending;
  if (first != nullptr) {
    pending.push_back(std::move(first));
  }
  tier.begin_group();
  try {
    for (const int owner : owners) {
      pending.push_back(start(owner));
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

}  // namespace

// Each segment is encoded while the one before it crosses. This node's own piece crosses no link: it is summed while
// packets are exchanged. Nothing is written to the shard before it is decoded.
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
  run.admit_output(Lane::kDecode);
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
    reorder(device_, map, gradient, packed, /*by_node=*/true, run.tail());
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
// own=false. Returns the event of the sums.
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
  const Step step(run, Phase::kIntraReduceScatter, Lane::kIntra, &CollectiveStats::intra_s, ready);
  const int64_t piece_elements = pieces.sums.num_elements / map.num_nodes();
  start_group(tiers_.intra(), owners, run.tail(), std::move(run.same_units), [&](int owner) {
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
  wait_on_host(run, crossing);
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

// Only the CPU waits here: on a GPU the lane waits instead.
void TwoTierPath::wait_on_host(Run& run, Crossing& crossing) const {
  if (crossing.handle != nullptr && device_.is_host()) {
    const Step step(run, Phase::kInterExchange, Lane::kInter, &CollectiveStats::exchange_s, crossing.done);
    crossing.handle->wait(run.tail());
  }
}

// options.segments; where it is 0, the CPU chooses by elements, and a GPU by bytes of packets, since a segment costs
// launches.
int64_t TwoTierPath::wanted_segments(const ReductionPlan& plan, int64_t num_elements) const {
  if (options_.segments > 0 || device_.is_host()) {
    return options_.segments;
  }
  return segments_for_packets((tiers_.num_nodes() - 1) * plan.codecs.pieces->packet_bytes(num_elements));
}

void TwoTierPath::all_reduce(Run& run, const ReductionPlan& plan, Buffer data) const {
  const ConstBuffer gradient = in_equal_chunks(run, data);
  const Buffer result = run.take(tiers_.chunk_elements(data.num_elements), accumulate_dtype(data.dtype));
  reduce_scatter(run, plan, gradient, result);
  const Buffer packet = encode_result(run, plan, result);
  const Buffer packets = run.take(tiers_.world_size() * packet.num_elements, DataType::kByte);
  gather(run, packet, packets);
  decode_result(run, plan, packets, data);
}

// Returns `data`, or a copy that zeros extend until the ranks divide it.
ConstBuffer TwoTierPath::in_equal_chunks(Run& run, ConstBuffer data) const {
  const int64_t padded_elements = tiers_.chunk_elements(data.num_elements) * tiers_.world_size();
  if (padded_elements == data.num_elements) {
    return data;
  }
  run.counters.packed_calls = 1;
  run.set_phase(Phase::kPack);
  run.enter(Lane::kIntra);
  const Buffer padded = run.take(padded_elements, data.dtype);
  const Buffer padding = padded.slice(data.num_elements, padded_elements - data.num_elements);
  device_.convert(data, padded.slice(0, data.num_elements), run.tail());
  device_.clear(padding, run.tail());
  return padded;
}

Buffer TwoTierPath::encode_result(Run& run, const ReductionPlan& plan, ConstBuffer result) const {
  const Step step(run, Phase::kEncodeResult, Lane::kDecode, &CollectiveStats::encode_s);
  Codec& codec = *plan.codecs.result;
  const Buffer packet = run.take(codec.packet_bytes(result.num_elements), DataType::kByte);
  const Buffer residual = plan.has_residual() ? plan.unit->result.values : Buffer{};
  const Workspace workspace = run.workspace(codec.encode_scratch_bytes({.num_elements = result.num_elements}));
  const PacketContext context = coder_.context_for(plan, PacketUse::kResult, tiers_.node());
  coder_.encode(run, plan, codec, result, residual, packet, context, workspace);
  coder_.count_packets(run, plan, PacketUse::kResult);
  if (plan.has_state) {
    coder_.guard(run, plan, plan.unit->result);
  }
  return packet;
}

// Every rank, also the owner, decodes each chunk from its packet, so that all have the same bits. A GPU decodes all
// packets at once. The CPU decodes one after another, which takes less memory.
void TwoTierPath::decode_result(Run& run, const ReductionPlan& plan, ConstBuffer packets, Buffer data) const {
  const Step step(run, Phase::kDecodeResult, Lane::kDecode, &CollectiveStats::decode_s);
  Codec& codec = *plan.codecs.result;
  const int num_packets = tiers_.world_size();
  const int at_once = device_.is_host() ? 1 : num_packets;
  const int64_t chunk = tiers_.chunk_elements(data.num_elements);
  const int64_t packet_bytes = packets.num_elements / num_packets;
  const DataType decoded_dtype = accumulate_dtype(data.dtype);
  const bool all_fit = data.dtype == decoded_dtype && data.num_elements == chunk * num_packets &&
                       (at_once == 1 || tiers_.map().block_placement());
  const Buffer stand_in = all_fit ? Buffer{} : run.take(at_once * chunk, decoded_dtype);
  const Workspace workspace = run.workspace(codec.decode_each_scratch_bytes(chunk, at_once));
  PacketContext context = coder_.context_for(plan, PacketUse::kArrivedResult, 0);
  context.packets_of_sender = tiers_.ranks_per_node();
  for (int first = 0; first < num_packets; first += at_once) {
    const Buffer place = place_of_packets(first, at_once, chunk, data);
    const bool fits = place.num_elements == at_once * chunk && place.dtype == decoded_dtype;
    const Buffer decoded = fits ? place : stand_in;
    run.codec_counts += codec.decode_each(packets.slice(first * packet_bytes, at_once * packet_bytes), at_once, decoded,
                                          context.of_packet(first), workspace);
    for (int packet = 0; !fits && packet < at_once; ++packet) {
      const Buffer own_place = place_of_packets(first + packet, 1, chunk, data);
      device_.convert(decoded.part(packet, chunk).slice(0, own_place.num_elements), own_place, run.tail());
    }
  }
  coder_.count_packets(run, plan, PacketUse::kArrivedResult);
}

// Where the chunks of `count` packets, which lie node by node, belong in the result; empty if they are not neighbours
// there. The last chunks may be shorter or empty.
Buffer TwoTierPath::place_of_packets(int first, int count, int64_t chunk, Buffer data) const {
  const NodeMap& map = tiers_.map();
  if (count > 1 && !map.block_placement()) {
    return {};
  }
  const int owner = map.rank(first / map.ranks_per_node(), first % map.ranks_per_node());
  const int64_t begin = std::min(owner * chunk, data.num_elements);
  return data.slice(begin, std::min(count * chunk, data.num_elements - begin));
}

void TwoTierPath::all_gather(Run& run, ConstBuffer shard, Buffer gathered, ConstBuffer rail) const {
  const NodeMap& map = tiers_.map();
  const bool in_blocks = map.block_placement();
  const Buffer by_node = in_blocks ? gathered : run.take(gathered.num_elements, gathered.dtype);
  if (rail.num_elements > 0) {
    gather_within_node(run, rail, /*with_own=*/true, by_node, run.event());
  } else {
    gather(run, shard, by_node);
  }
  if (!in_blocks) {
    run.counters.packed_calls = 1;
    run.set_phase(Phase::kUnpack);
    reorder(device_, map, by_node, gathered, /*by_node=*/false, run.tail());
  }
}

// Gathers the shards of all ranks, node by node. A GPU gathers its own node's shards beside the exchange between nodes.
// The host must not: it would write a shard that stands in its place in the result while the shard is sent.
void TwoTierPath::gather(Run& run, ConstBuffer shard, Buffer by_node) const {
  const bool beside = !device_.is_host() && tiers_.num_nodes() > 1 && tiers_.ranks_per_node() > 1;
  const EventPtr ready = run.event();
  const ConstBuffer rail = gather_along_rail(run, shard, by_node);
  const EventPtr crossed = run.event();
  if (beside) {
    const Step step(run, Phase::kIntraAllGather, tiers_.gather_intra_lane(), &CollectiveStats::intra_s, ready);
    const Buffer own = by_node.part(tiers_.node(), tiers_.ranks_per_node() * shard.num_elements);
    tiers_.gather_intra().all_gather(shard, own, run.tail())->wait(run.tail());
  }
  gather_within_node(run, rail, /*with_own=*/!beside, by_node, crossed);
}

// Returns the shards of this rail, by node. With one rank a node this is the whole result, and it stands in `by_node`.
ConstBuffer TwoTierPath::gather_along_rail(Run& run, ConstBuffer shard, Buffer by_node) const {
  if (tiers_.num_nodes() == 1) {
    return shard;
  }
  const Step step(run, Phase::kInterAllGather, tiers_.gather_inter_lane(), &CollectiveStats::exchange_s);
  const Buffer rail =
      tiers_.ranks_per_node() == 1 ? by_node : run.take(tiers_.num_nodes() * shard.num_elements, shard.dtype);
  tiers_.gather_inter().all_gather(shard, rail, run.tail())->wait(run.tail());
  return rail;
}

// Gathers the rail's shards (`rail`, by node) within the node, after `ready`. with_own: also this node's own shards.
void TwoTierPath::gather_within_node(Run& run, ConstBuffer rail, bool with_own, Buffer by_node,
                                     const EventPtr& ready) const {
  if (tiers_.ranks_per_node() == 1) {
    if (rail.data != by_node.data) {
      device_.convert(rail, by_node, run.tail());
    }
    return;
  }
  std::vector<int> owners;
  for (int owner = 0; owner < tiers_.num_nodes(); ++owner) {
    if (with_own || owner != tiers_.node()) {
      owners.push_back(owner);
    }
  }
  const Step step(run, Phase::kIntraAllGather, tiers_.gather_intra_lane(), &CollectiveStats::intra_s, ready);
  const int64_t shard_elements = rail.num_elements / tiers_.num_nodes();
  start_group(tiers_.gather_intra(), owners, run.tail(), nullptr, [&](int owner) {
    const Buffer shards = by_node.part(owner, tiers_.ranks_per_node() * shard_elements);
    return tiers_.gather_intra().all_gather(rail.part(owner, shard_elements), shards, run.tail());
  });
}

}  // namespace isthmus
