#include "isthmus/communicator.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "auto/unit_choice.h"
#include "codec/tagc/flat.h"
#include "communicator/path/segments.h"
#include "communicator/plan/policy.h"
#include "communicator/plan/schedule.h"
#include "communicator/scratch.h"
#include "communicator/step.h"
#include "communicator/units/unit_table.h"
#include "isthmus/error.h"
#include "kernels/block/device.h"

namespace isthmus {
namespace {

void check_tier(const char* name, const Transport* tier, int size, int rank) {
  if (size == 1 && tier == nullptr) {
    return;
  }
  ISTHMUS_CHECK(Error, tier != nullptr, "the ", name, " tier of ", size, " ranks is missing");
  ISTHMUS_CHECK(Error, tier->size() == size && tier->rank() == rank, "the ", name, " tier is rank ", tier->rank(),
                " of ", tier->size(), ", but the node map makes it rank ", rank, " of ", size);
}

// out[to(i)] = in[from(i)] for every equal part, where one side is in rank order and the other node by node.
template <typename From, typename To>
void reorder(Device& device, const NodeMap& map, ConstBuffer in, Buffer out, From from, To to, Stream stream) {
  const int64_t part_elements = in.num_elements / map.world_size();
  for (int rank = 0; rank < map.world_size(); ++rank) {
    device.convert(in.part(from(rank), part_elements), out.part(to(rank), part_elements), stream);
  }
}

// Starts `count` operations of a tier as one, and waits for all: start(i) starts one.
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
    } catch (const std::exception&) {  // what came first is what is told
    }
    throw;
  }
  tier.end_group();
  for (const HandlePtr& handle : pending) {
    handle->wait(stream);
  }
}

}  // namespace

Communicator::Communicator(NodeMap map, int rank, Tiers tiers, Options options, std::shared_ptr<Device> device)
    : map_(std::move(map)),
      rank_(rank),
      tiers_(std::move(tiers)),
      options_(std::move(options)),
      device_(std::move(device)),
      reduction_scratch_(std::make_unique<ScratchInTurns>(*device_)),
      gather_scratch_(device_->is_host() ? nullptr : std::make_unique<ScratchInTurns>(*device_)),
      units_(std::make_unique<UnitTable>(*device_, options_.max_units)),
      plain_contexts_(make_contexts(*device_)) {
  options_.validate();
  ISTHMUS_CHECK(OptionError, map_.even(), "nodes ", map_.to_string(),
                ": the two-tier paths need equally many ranks on every node");
  constexpr int kMostNodes = 1 << 16;  // a packet's header says which of them encoded it
  ISTHMUS_CHECK(OptionError, num_nodes() <= kMostNodes, "a group of ", num_nodes(), " nodes: expected at most ",
                kMostNodes);
  ISTHMUS_CHECK(OptionError, !flat() || device_->is_host(), "tiers=flat is for the CPU, not for ", device_->name());
  ISTHMUS_CHECK(Error, rank_ >= 0 && rank_ < map_.world_size(), "rank ", rank_, " is not in 0..",
                map_.world_size() - 1);
  check_tiers();
  ISTHMUS_CHECK(OptionError, !flat() || options_.codec == "tagc" || options_.codec == "none",
                "option tiers=\"flat\": expected codec tagc or none, not ", options_.codec);
  if (!flat() && !chooses()) {
    codec(options_, DataType::kFloat32, 1);  // throws where its settings do not fit
  } else if (flat() && options_.codec == "tagc") {
    tagc_flat(options_);
  }
}

Communicator::~Communicator() = default;

void Communicator::check_tiers() const {
  check_tier("intra", tiers_.intra.get(), ranks_per_node(), map_.local_index(rank_));
  check_tier("inter", tiers_.inter.get(), num_nodes(), node());
  check_tier("intra tier for gathers, the", gather_intra(), ranks_per_node(), map_.local_index(rank_));
  check_tier("inter tier for gathers, the", gather_inter(), num_nodes(), node());
  if (flat()) {
    check_tier("flat", tiers_.flat.get(), map_.world_size(), rank_);
  }
}

EventPtr Communicator::reduce_scatter(ConstBuffer gradient, Buffer shard, double scale, const UnitKey& unit,
                                      const char* why_exact, Stream stream) {
  check_reduce_scatter(gradient, shard, unit);
  check_capture(unit, scale, why_exact, stream);
  return run(Collective::kReduceScatter, stream, [&] {
    const Reduction reduction = decide(unit, scale, why_exact);
    if (shard.num_elements > 0) {
      reduce_to_shard(gradient, shard, reduction);
    }
    if (reduction.drains) {
      units_->drop_residuals(*reduction.unit);
    }
  });
}

void Communicator::reduce_to_shard(ConstBuffer gradient, Buffer shard, const Reduction& reduction) {
  if (flat()) {
    reduce_scatter_flat(gradient, shard, reduction);
  } else {
    reduce_scatter_in_two_tiers(gradient, shard, reduction);
  }
}

// The main path. Each segment of the pieces is encoded while the one before it crosses.
void Communicator::reduce_scatter_in_two_tiers(ConstBuffer gradient, Buffer shard, const Reduction& reduction) {
  const ConstBuffer pieces = sum_within_node(gradient);
  const EventPtr summed = event_here();
  const std::vector<Segment> segments = segments_of(shard.num_elements, options_.segments);
  std::vector<Crossing> crossings;
  for (const Segment& segment : segments) {
    const Buffer packets = encode(pieces, summed, segment, reduction);
    crossings.push_back(exchange_along_rail(packets, segment));
  }
  const Buffer sum = sum_target(shard);
  for (Crossing& crossing : crossings) {
    decode_sum(pieces, crossing, reduction, sum);
  }
  device_->convert_scaled(sum, reduction.scale, shard, here_);
}

// For each node the piece that its rank of this rail owns, summed over this node.
ConstBuffer Communicator::sum_within_node(ConstBuffer gradient) {
  const DataType dtype = piece_type(gradient.dtype).dtype;
  if (ranks_per_node() == 1 && gradient.dtype == dtype) {
    return gradient;
  }
  if (!map_.block_placement()) {
    current_.packed_calls = 1;
    phase_ = "pack";
    enter(Lane::kIntra);
    const Buffer packed = take_scratch(gradient.num_elements, gradient.dtype);
    reorder(
        *device_, map_, gradient, packed, [](int rank) { return rank; },
        [this](int rank) { return map_.position(rank); }, here_);
    gradient = packed;
  }
  const Step step(*this, "intra reduce-scatter", Lane::kIntra, &CollectiveStats::intra_s);
  const Buffer pieces = take_scratch(gradient.num_elements / ranks_per_node(), dtype);
  if (ranks_per_node() == 1) {
    device_->convert(gradient, pieces, here_);
    return pieces;
  }
  const int64_t piece_elements = pieces.num_elements / num_nodes();
  start_group(*tiers_.intra, num_nodes(), here_, [&](int owner) {
    const ConstBuffer chunks = gradient.part(owner, ranks_per_node() * piece_elements);
    return tiers_.intra->reduce_scatter(chunks, pieces.part(owner, piece_elements), here_);
  });
  return pieces;
}

// One packet for each other node, at that node's place. This node's own place stays unused, unless the own piece is
// coded, too.
Buffer Communicator::encode(ConstBuffer pieces, const EventPtr& summed, const Segment& segment,
                            const Reduction& reduction) {
  const Step step(*this, "encode", Lane::kEncode, summed, &CollectiveStats::encode_s);
  Codec& codec = *reduction.codec;
  const int64_t piece_elements = pieces.num_elements / num_nodes();
  const int64_t packet_bytes = codec.packet_bytes(segment.num_elements);
  const Buffer packets = take_scratch(num_nodes() * packet_bytes, DataType::kByte);
  const Workspace with = workspace(codec.encode_scratch_bytes(segment.num_elements));
  const PacketContext context = context_for(reduction, PacketUse::kPiece, node(), segment.index);
  int residual_index = 0;
  for (int owner = 0; owner < num_nodes(); ++owner) {
    if (owner == node() && !codes_own_piece()) {
      continue;
    }
    const ConstBuffer piece = pieces.part(owner, piece_elements).slice(segment.begin, segment.num_elements);
    const Buffer residual =
        has_residual(reduction)
            ? reduction.unit->residual.part(residual_index++, piece_elements).slice(segment.begin, segment.num_elements)
            : Buffer{};
    encode_packet(codec, piece, residual, packets.part(owner, packet_bytes), reduction, context, with);
    if (owner != node()) {
      current_unit_.stats.coded_elements += segment.num_elements;
      current_unit_.stats.packet_bytes += packet_bytes;
    }
  }
  if (segment.is_last) {
    count_packets(reduction, PacketUse::kPiece);
  }
  return packets;
}

Communicator::Crossing Communicator::exchange_along_rail(Buffer packets, const Segment& segment) {
  Crossing crossing{&segment, packets, packets, nullptr, nullptr};
  if (num_nodes() > 1) {
    const Step step(*this, "inter exchange", Lane::kInter, &CollectiveStats::exchange_s);
    crossing.arrived = take_scratch(packets.num_elements, DataType::kByte);
    crossing.handle = tiers_.inter->all_to_all(packets, crossing.arrived, here_);
  }
  crossing.done = event_here();
  return crossing;
}

// The own piece, and what arrived from the other nodes, in their order.
void Communicator::decode_sum(ConstBuffer pieces, Crossing& crossing, const Reduction& reduction, Buffer sum) {
  wait_on_host(crossing);
  const Step step(*this, "decode", Lane::kDecode, crossing.done, &CollectiveStats::decode_s);
  Codec& codec = *reduction.codec;
  const Segment& segment = *crossing.segment;
  const int64_t packet_bytes = crossing.arrived.num_elements / num_nodes();
  const Buffer sum_of_segment = sum.slice(segment.begin, segment.num_elements);
  const int below = node();
  const int above = num_nodes() - node() - 1;
  const Workspace with = workspace(codec.decode_scratch_bytes(segment.num_elements, std::max({below, above, 1})));
  PacketContext context = context_for(reduction, PacketUse::kArrivedPiece, 0, segment.index);
  const auto add = [&](ConstBuffer packets, int first_node, int num_packets) {
    context.sender = static_cast<uint16_t>(first_node);
    current_codec_ += codec.decode_sum(packets, num_packets, sum_of_segment, context, with);
  };
  if (codes_own_piece()) {
    device_->clear(sum_of_segment, here_);
    add(crossing.packets.part(node(), packet_bytes), node(), 1);
  } else {
    const ConstBuffer own_piece = pieces.part(node(), pieces.num_elements / num_nodes());
    device_->convert(own_piece.slice(segment.begin, segment.num_elements), sum_of_segment, here_);
  }
  add(crossing.arrived.slice(0, below * packet_bytes), 0, below);
  add(crossing.arrived.slice((node() + 1) * packet_bytes, above * packet_bytes), node() + 1, above);
  if (segment.is_last) {
    count_packets(reduction, PacketUse::kArrivedPiece);
  }
}

// On a GPU the lane waits, and the host does not.
void Communicator::wait_on_host(Crossing& crossing) {
  if (crossing.handle != nullptr && device_->is_host()) {
    const Step step(*this, "inter exchange", Lane::kInter, crossing.done, &CollectiveStats::exchange_s);
    crossing.handle->wait(here_);
  }
}

EventPtr Communicator::all_reduce(Buffer data, double scale, const UnitKey& unit, const char* why_exact,
                                  Stream stream) {
  check_all_reduce(data, unit);
  check_capture(unit, scale, why_exact, stream);
  return run(Collective::kAllReduce, stream, [&] {
    const Reduction reduction = decide(unit, scale, why_exact);
    if (data.num_elements > 0) {
      all_reduce_through_owners(data, reduction);
    }
    if (reduction.drains) {
      units_->drop_residuals(*reduction.unit);
    }
  });
}

EventPtr Communicator::all_gather(ConstBuffer shard, Buffer gathered, Stream stream) {
  check_all_gather(shard, gathered);
  return run(Collective::kAllGather, stream, [&] {
    if (shard.num_elements == 0) {
      return;
    }
    const bool in_blocks = map_.block_placement();
    const Buffer by_node = in_blocks ? gathered : take_scratch(gathered.num_elements, gathered.dtype);
    const ConstBuffer rail = gather_along_rail(shard, by_node);
    gather_within_node(rail, by_node);
    if (!in_blocks) {
      current_.packed_calls = 1;
      phase_ = "unpack";
      reorder(
          *device_, map_, by_node, gathered, [this](int rank) { return map_.position(rank); },
          [](int rank) { return rank; }, here_);
    }
  });
}

// The shards of this rail, by node. With one rank a node that is the result, which then stands in `by_node`.
ConstBuffer Communicator::gather_along_rail(ConstBuffer shard, Buffer by_node) {
  if (num_nodes() == 1) {
    return shard;
  }
  const Step step(*this, "inter all-gather", gather_inter_lane(), &CollectiveStats::exchange_s);
  const Buffer rail = ranks_per_node() == 1 ? by_node : take_scratch(num_nodes() * shard.num_elements, shard.dtype);
  gather_inter()->all_gather(shard, rail, here_)->wait(here_);
  return rail;
}

// The shards of all ranks, node by node.
void Communicator::gather_within_node(ConstBuffer rail, Buffer by_node) {
  if (ranks_per_node() == 1) {
    if (rail.data != by_node.data) {
      device_->convert(rail, by_node, here_);
    }
    return;
  }
  const Step step(*this, "intra all-gather", gather_intra_lane(), &CollectiveStats::intra_s);
  const int64_t shard_elements = rail.num_elements / num_nodes();
  start_group(*gather_intra(), num_nodes(), here_, [&](int owner) {
    const Buffer shards = by_node.part(owner, ranks_per_node() * shard_elements);
    return gather_intra()->all_gather(rail.part(owner, shard_elements), shards, here_);
  });
}

void Communicator::check_reduce_scatter(ConstBuffer gradient, ConstBuffer shard, const UnitKey& unit) const {
  ISTHMUS_CHECK(Error, gradient.dtype != DataType::kByte && gradient.dtype == shard.dtype, "reduce_scatter of ",
                to_string(gradient.dtype), " into ", to_string(shard.dtype), ": expected one floating type");
  ISTHMUS_CHECK(Error, gradient.num_elements == shard.num_elements * map_.world_size(), "reduce_scatter of ",
                gradient.num_elements, " elements over ", map_.world_size(), " ranks into ", shard.num_elements,
                ": expected ", map_.world_size(), " chunks of the shard's size");
  check_unit(unit, Collective::kReduceScatter, gradient);
}

void Communicator::check_unit(const UnitKey& unit, Collective collective, ConstBuffer data) const {
  ISTHMUS_CHECK(Error, unit.num_elements == data.num_elements && unit.dtype == data.dtype, "unit \"", unit.name,
                "\" has ", unit.num_elements, " elements of ", to_string(unit.dtype), ", but its gradient has ",
                data.num_elements, " of ", to_string(data.dtype));
  ISTHMUS_CHECK(Error, unit.collective == collective, "unit \"", unit.name, "\" is one of ", to_string(unit.collective),
                ", but is reduced by ", to_string(collective));
}

void Communicator::check_all_reduce(ConstBuffer data, const UnitKey& unit) const {
  ISTHMUS_CHECK(Error, data.dtype != DataType::kByte, "all_reduce of ", to_string(data.dtype),
                ": expected a floating type");
  check_unit(unit, Collective::kAllReduce, data);
}

void Communicator::check_all_gather(ConstBuffer shard, ConstBuffer gathered) const {
  ISTHMUS_CHECK(Error, shard.dtype == gathered.dtype, "all_gather of ", to_string(shard.dtype), " into ",
                to_string(gathered.dtype), ": expected one type");
  ISTHMUS_CHECK(Error, gathered.num_elements == shard.num_elements * map_.world_size(), "all_gather of ",
                shard.num_elements, " elements over ", map_.world_size(), " ranks into ", gathered.num_elements,
                ": expected ", map_.world_size(), " chunks of the shard's size");
}

// In a graph a new unit would begin with zeros in its residual at every replay, and one whose scale changes would have
// its residual scaled by every replay.
void Communicator::check_capture(const UnitKey& key, double scale, const char* why_exact, Stream caller) const {
  if (device_->capture(caller) == 0 || exact_reason(key, scale, why_exact) != nullptr) {
    return;
  }
  const Unit* unit = units_->find(key);
  const auto first_steps = static_cast<uint64_t>(options_.dense_steps) + static_cast<uint64_t>(options_.ramp_steps);
  ISTHMUS_CHECK(Error, unit == nullptr || unit->step >= first_steps, "unit \"", key.name,
                "\" is captured into a graph after ", unit != nullptr ? unit->step : 0, " reductions: expected ",
                first_steps, " before (dense_steps and ramp_steps)");
  if (unit == nullptr) {
    ISTHMUS_CHECK(Error, units_->full(), "unit \"", key.name,
                  "\" is reduced for the first time while a graph is captured: expected a step before");
    return;
  }
  const double scale_before = unit->scale / piece_type(key.dtype).divisor;
  ISTHMUS_CHECK(Error, unit->scale == 0 || scale_before == scale, "unit \"", key.name, "\" is reduced with scale ",
                scale, " while a graph is captured, and was with ", scale_before, " before: expected one scale");
}

template <typename Body>
EventPtr Communicator::run(Collective collective, Stream caller, const Body& body) {
  throw_if_faulted();
  const Traffic intra = intra_traffic();
  const Traffic inter = inter_traffic();
  const Traffic flat = traffic_of(tiers_.flat);
  EventPtr done;
  try {
    phase_ = "buffers";
    begin(caller, collective);
    body();
    done = end();
  } catch (const std::bad_alloc&) {
    const std::string reason = detail::concatenate("no memory for phase \"", phase_, "\" of ", to_string(collective));
    fail(reason);
    throw Error(reason);
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
  phase_ = "idle";
  current_.calls = 1;
  current_.intra = intra_traffic() - intra;
  current_.inter = inter_traffic() - inter;
  current_.flat = traffic_of(tiers_.flat) - flat;
  record();
  return done;
}

// How pieces are summed within the node, and their type.
SumType Communicator::piece_type(DataType dtype) const {
  return ranks_per_node() == 1 ? SumType{device_->piece_dtype(dtype)} : tiers_.intra->sum_type(dtype);
}

// Where the sum of a shard is taken: in the shard itself if it has the accumulate type.
Buffer Communicator::sum_target(Buffer shard) {
  const DataType sum_dtype = accumulate_dtype(shard.dtype);
  return shard.dtype == sum_dtype ? shard : take_scratch(shard.num_elements, sum_dtype);
}

}  // namespace isthmus
