#include "communicator/path/path.h"

#include <algorithm>
#include <exception>

namespace isthmus {

void Path::reorder(ConstBuffer in, Buffer out, bool by_node, Stream stream) const {
  const NodeMap& map = tiers_.map();
  const int64_t part_elements = in.num_elements / map.world_size();
  for (int rank = 0; rank < map.world_size(); ++rank) {
    const int place = map.position(rank);
    device_.convert(in.part(by_node ? rank : place, part_elements), out.part(by_node ? place : rank, part_elements),
                    stream);
  }
}

// A gather that is aborted leaves the own unit everywhere: there is no other to blame.
HandlePtr Path::tell_unit(Run& run, const ReductionPlan& plan, Transport& tier) const {
  if (device_.is_host()) {
    return tier.compare_units(plan.hash, plan.unit->key.name);
  }
  run.units_told = run.take(tier.size() * static_cast<int64_t>(sizeof(DeviceContext)), DataType::kByte);
  const Buffer own = run.units_told.part(tier.rank(), sizeof(DeviceContext));
  const auto rank = static_cast<uint64_t>(tiers_.rank());
  device_.set_contexts(run.units_told.as<DeviceContext>(), tier.size(), {plan.hash, rank}, run.tail());
  return tier.all_gather_uncounted(own, run.units_told, run.tail());
}

void Path::refuse_other_units(Run& run, const ReductionPlan& plan, Buffer packets, int num_packets) const {
  if (run.units_told.num_elements > 0) {
    device_.refuse_other_units(run.units_told, plan.hash, packets, num_packets, run.tail());
  }
}

void Path::run_for_owners(Transport& tier, const std::vector<int>& owners, Stream stream,
                          const std::function<HandlePtr()>& first, const std::function<HandlePtr(int)>& start) {
  std::vector<HandlePtr> pending;
  tier.begin_group();
  try {
    if (first) {
      pending.push_back(first());
    }
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

void Path::wait_on_host(Run& run, Phase phase, const HandlePtr& handle, const EventPtr& done) const {
  if (handle != nullptr && device_.is_host()) {
    const Step step(run, phase, Lane::kInter, &CollectiveStats::exchange_s, done);
    handle->wait(run.tail());
  }
}

void Path::all_reduce(Run& run, const ReductionPlan& plan, Buffer data) const {
  const ConstBuffer gradient = in_equal_chunks(run, data);
  const Buffer result = run.take(tiers_.chunk_elements(data.num_elements), accumulate_dtype(data.dtype));
  reduce_scatter(run, plan, gradient, result);
  const Buffer packet = encode_result(run, plan, result);
  const Buffer packets = run.take(tiers_.world_size() * packet.num_elements, DataType::kByte);
  gather(run, packet, packets,
         [&](int first, int count) { decode_result(run, plan, packets, first, count, result, data); });
  coder_.count_packets(run, plan, PacketUse::kArrivedResult);
}

// Returns `data`, or a copy that zeros extend until the ranks divide it.
ConstBuffer Path::in_equal_chunks(Run& run, ConstBuffer data) const {
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

Buffer Path::encode_result(Run& run, const ReductionPlan& plan, ConstBuffer result) const {
  const Step step(run, Phase::kEncodeResult, Lane::kDecode, &CollectiveStats::encode_s);
  Codec& codec = *plan.codecs.result;
  const Buffer packet = run.take(codec.packet_bytes(result.num_elements), DataType::kByte);
  const Buffer residual = plan.has_residual() ? plan.unit->result.values : Buffer{};
  const Workspace workspace = run.workspace(codec.encode_scratch_bytes({.num_elements = result.num_elements}));
  const PacketContext context = coder_.context_for(plan, PacketUse::kResult, tiers_.node());
  coder_.encode(run, plan, codec, result, residual, packet, context, workspace);
  coder_.count_packets(run, plan, PacketUse::kResult);
  if (plan.has_state) {
    coder_.end_step(run, plan, plan.unit->result);
  }
  return packet;
}

// Every rank, also the owner, decodes each chunk from its packet, so that all have the same bits. A GPU decodes all
// packets at once, on another lane than pieces: those of the next unit do not wait for this unit's gather. The CPU
// decodes one after another, where need be into `spare`, a chunk that it is done with.
void Path::decode_result(Run& run, const ReductionPlan& plan, ConstBuffer packets, int first_node, int num_nodes,
                         Buffer spare, Buffer data) const {
  if (num_nodes == 0) {
    return;
  }
  const Lane lane = lane_of(PacketUse::kArrivedResult);
  run.admit_output(lane);
  const Step step(run, Phase::kDecodeResult, lane, &CollectiveStats::decode_s);
  Codec& codec = *plan.codecs.result;
  const int num_packets = tiers_.world_size();
  const int at_once = device_.is_host() ? 1 : num_packets;
  const int64_t chunk = tiers_.chunk_elements(data.num_elements);
  const int64_t packet_bytes = packets.num_elements / num_packets;
  const DataType decoded_dtype = accumulate_dtype(data.dtype);
  const bool all_fit = data.dtype == decoded_dtype && data.num_elements == chunk * num_packets &&
                       (at_once == 1 || tiers_.map().block_placement());
  const Buffer stand_in = all_fit || at_once == 1 ? spare : run.take(at_once * chunk, decoded_dtype);
  const Workspace workspace = run.workspace(codec.decode_each_scratch_bytes(chunk, at_once));
  PacketContext context = coder_.context_for(plan, PacketUse::kArrivedResult, 0);
  context.packets_of_sender = tiers_.ranks_per_node();
  const int end = (first_node + num_nodes) * tiers_.ranks_per_node();
  for (int first = first_node * tiers_.ranks_per_node(); first < end; first += at_once) {
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
}

// Where the chunks of `count` packets, which lie node by node, belong in the result; empty if they are not neighbours
// there. The last chunks may be shorter or empty.
Buffer Path::place_of_packets(int first, int count, int64_t chunk, Buffer data) const {
  const NodeMap& map = tiers_.map();
  if (count > 1 && !map.block_placement()) {
    return {};
  }
  const int owner = map.rank(first / map.ranks_per_node(), first % map.ranks_per_node());
  const int64_t begin = std::min(owner * chunk, data.num_elements);
  return data.slice(begin, std::min(count * chunk, data.num_elements - begin));
}

void Path::all_gather(Run& run, ConstBuffer shard, Buffer gathered, ConstBuffer rail) const {
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
    reorder(by_node, gathered, /*by_node=*/false, run.tail());
  }
}

// Gathers the shards of all ranks, node by node. A GPU gathers its own node's shards beside the exchange between nodes.
// The host does so for an all-reduce, and hands them over while the others cross. For all_gather() it must not: it
// would write a shard that stands in its place in the result while the shard is sent.
void Path::gather(Run& run, ConstBuffer shard, Buffer by_node, const Arrived& arrived) const {
  const int node = tiers_.node();
  const int num_nodes = tiers_.num_nodes();
  const bool beside = (!device_.is_host() || arrived) && num_nodes > 1 && tiers_.ranks_per_node() > 1;
  const bool own_first = beside && device_.is_host();
  const EventPtr ready = run.event();
  const RailCrossing rail = gather_along_rail(run, shard, by_node);
  if (beside) {
    const Step step(run, Phase::kIntraAllGather, tiers_.gather_intra_lane(), &CollectiveStats::intra_s, ready);
    const Buffer own = by_node.part(node, tiers_.ranks_per_node() * shard.num_elements);
    tiers_.gather_intra().all_gather(shard, own, run.tail())->wait(run.tail());
  }
  if (own_first) {
    arrived(node, 1);
  }
  wait_on_host(run, Phase::kInterAllGather, rail.handle, rail.done);
  gather_within_node(run, rail.shards, /*with_own=*/!beside, by_node, rail.done);
  if (own_first) {
    arrived(0, node);
    arrived(node + 1, num_nodes - node - 1);
  } else if (arrived) {
    arrived(0, num_nodes);
  }
}

// With one rank a node this is the whole result, and it stands in `by_node`.
Path::RailCrossing Path::gather_along_rail(Run& run, ConstBuffer shard, Buffer by_node) const {
  if (tiers_.num_nodes() == 1) {
    return {shard, nullptr, run.event()};
  }
  const Step step(run, Phase::kInterAllGather, tiers_.gather_inter_lane(), &CollectiveStats::exchange_s);
  const Buffer rail =
      tiers_.ranks_per_node() == 1 ? by_node : run.take(tiers_.num_nodes() * shard.num_elements, shard.dtype);
  HandlePtr handle = tiers_.gather_inter().all_gather(shard, rail, run.tail());
  return {rail, std::move(handle), run.event()};
}

// Gathers the rail's shards (`rail`, by node) within the node, after `ready`. with_own: also this node's own shards.
void Path::gather_within_node(Run& run, ConstBuffer rail, bool with_own, Buffer by_node, const EventPtr& ready) const {
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
  run_for_owners(tiers_.gather_intra(), owners, run.tail(), nullptr, [&](int owner) {
    const Buffer shards = by_node.part(owner, tiers_.ranks_per_node() * shard_elements);
    return tiers_.gather_intra().all_gather(rail.part(owner, shard_elements), shards, run.tail());
  });
}

}  // namespace isthmus
