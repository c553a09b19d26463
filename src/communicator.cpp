#include "isthmus/communicator.h"

#include <cmath>
#include <new>
#include <utility>
#include <vector>

#include "codec/tagc_flat.h"
#include "communicator_step.h"
#include "isthmus/error.h"
#include "policy.h"
#include "scratch.h"
#include "unit_table.h"

namespace isthmus {
namespace {

Traffic traffic_of(const std::shared_ptr<Transport>& tier) { return tier ? tier->traffic() : Traffic{}; }

void check_tier(const char* name, const std::shared_ptr<Transport>& tier, int size, int rank) {
  if (size == 1 && tier == nullptr) {
    return;
  }
  ISTHMUS_CHECK(Error, tier != nullptr, "the ", name, " tier of ", size, " ranks is missing");
  ISTHMUS_CHECK(Error, tier->size() == size && tier->rank() == rank, "the ", name, " tier is rank ", tier->rank(),
                " of ", tier->size(), ", but the node map makes it rank ", rank, " of ", size);
}

// out[to(i)] = in[from(i)] for every equal part, where one side is in rank order and the other node by node.
template <typename From, typename To>
void reorder(const NodeMap& map, ConstBuffer in, Buffer out, From from, To to) {
  const int64_t part_elements = in.num_elements / map.world_size();
  for (int rank = 0; rank < map.world_size(); ++rank) {
    convert(in.part(from(rank), part_elements), out.part(to(rank), part_elements));
  }
}

void wait_for_all(const std::vector<HandlePtr>& pending, Stream stream) {
  for (const HandlePtr& handle : pending) {
    handle->wait(stream);
  }
}

}  // namespace

Communicator::Communicator(NodeMap map, int rank, Tiers tiers, Options options)
    : map_(std::move(map)),
      rank_(rank),
      tiers_(std::move(tiers)),
      options_(std::move(options)),
      scratch_(std::make_unique<Scratch>()),
      units_(std::make_unique<UnitTable>(options_.max_units)) {
  options_.validate();
  ISTHMUS_CHECK(OptionError, map_.even(), "nodes ", map_.to_string(),
                ": the two-tier paths need equally many ranks on every node");
  ISTHMUS_CHECK(Error, rank_ >= 0 && rank_ < map_.world_size(), "rank ", rank_, " is not in 0..",
                map_.world_size() - 1);
  check_tiers();
  if (flat() && options_.codec == "tagc") {
    tagc_flat_ = std::make_unique<TagcFlat>(options_, map_.world_size());
  }
}

Communicator::~Communicator() = default;

void Communicator::check_tiers() const {
  check_tier("intra", tiers_.intra, ranks_per_node(), map_.local_index(rank_));
  check_tier("inter", tiers_.inter, num_nodes(), node());
  if (flat()) {
    check_tier("flat", tiers_.flat, map_.world_size(), rank_);
  }
}

void Communicator::reduce_scatter(ConstBuffer gradient, Buffer shard, double scale, const UnitKey& unit,
                                  const char* why_exact, Stream stream) {
  check_reduce_scatter(gradient, shard, unit);
  run(Collective::kReduceScatter, [&] {
    const Reduction reduction = decide(unit, scale, why_exact);
    if (shard.num_elements > 0) {
      reduce_to_shard(gradient, shard, scale, reduction, stream);
    }
  });
}

void Communicator::reduce_to_shard(ConstBuffer gradient, Buffer shard, double scale, const Reduction& reduction,
                                   Stream stream) {
  if (flat()) {
    reduce_scatter_flat(gradient, shard, scale, reduction, stream);
  } else {
    reduce_scatter_in_two_tiers(gradient, shard, scale, reduction, stream);
  }
}

// The main path.
void Communicator::reduce_scatter_in_two_tiers(ConstBuffer gradient, Buffer shard, double scale,
                                               const Reduction& reduction, Stream stream) {
  const ConstBuffer pieces = sum_within_node(gradient, stream);
  const Buffer packets = encode(pieces, reduction, stream);
  const Buffer arrived = exchange_along_rail(packets, stream);
  const Buffer sum = decode_sum(pieces, arrived, reduction, shard, stream);
  convert_scaled(sum, scale, shard);
}

// For each node the piece that its rank of this rail owns, summed over this node, in the accumulate type.
ConstBuffer Communicator::sum_within_node(ConstBuffer gradient, Stream stream) {
  const DataType piece_dtype = accumulate_dtype(gradient.dtype);
  if (ranks_per_node() == 1 && gradient.dtype == piece_dtype) {
    return gradient;
  }
  if (!map_.block_placement()) {
    current_.packed_calls = 1;
    phase_ = "pack";
    const Buffer packed = scratch_->take(gradient.num_elements, gradient.dtype);
    reorder(
        map_, gradient, packed, [](int rank) { return rank; }, [this](int rank) { return map_.position(rank); });
    gradient = packed;
  }
  const Step step(*this, "intra reduce-scatter", &CollectiveStats::intra_s);
  const Buffer pieces = scratch_->take(gradient.num_elements / ranks_per_node(), piece_dtype);
  if (ranks_per_node() == 1) {
    convert(gradient, pieces);
    return pieces;
  }
  const int64_t piece_elements = pieces.num_elements / num_nodes();
  std::vector<HandlePtr> pending;
  for (int owner = 0; owner < num_nodes(); ++owner) {
    const ConstBuffer chunks = gradient.part(owner, ranks_per_node() * piece_elements);
    pending.push_back(tiers_.intra->reduce_scatter(chunks, pieces.part(owner, piece_elements), stream));
  }
  wait_for_all(pending, stream);
  return pieces;
}

// One packet for each other node, at that node's place; this node's own place stays unused.
Buffer Communicator::encode(ConstBuffer pieces, const Reduction& reduction, Stream stream) {
  const Step step(*this, "encode", &CollectiveStats::encode_s);
  const int64_t piece_elements = pieces.num_elements / num_nodes();
  const int64_t packet_bytes = reduction.codec->packet_bytes(piece_elements);
  const bool keeps_residual = reduction.codec->keeps_residual();
  const Buffer packets = scratch_->take(num_nodes() * packet_bytes, DataType::kByte);
  int residual_index = 0;
  for (int owner = 0; owner < num_nodes(); ++owner) {
    if (owner == node()) {
      continue;
    }
    const Buffer residual = keeps_residual ? reduction.unit->residual.part(residual_index++, piece_elements) : Buffer{};
    current_codec_ += reduction.codec->encode(pieces.part(owner, piece_elements), residual,
                                              packets.part(owner, packet_bytes), reduction.context, stream);
  }
  return packets;
}

Buffer Communicator::exchange_along_rail(Buffer packets, Stream stream) {
  if (num_nodes() == 1) {
    return packets;
  }
  const Step step(*this, "inter exchange", &CollectiveStats::exchange_s);
  const Buffer arrived = scratch_->take(packets.num_elements, DataType::kByte);
  tiers_.inter->all_to_all(packets, arrived, stream)->wait(stream);
  return arrived;
}

// The own piece, which never crossed, and what arrived from the other nodes, in their order.
Buffer Communicator::decode_sum(ConstBuffer pieces, ConstBuffer arrived, const Reduction& reduction, Buffer shard,
                                Stream stream) {
  const Step step(*this, "decode", &CollectiveStats::decode_s);
  const int64_t packet_bytes = arrived.num_elements / num_nodes();
  const Buffer sum = sum_target(shard);
  const int below = node();
  const int above = num_nodes() - node() - 1;
  convert(pieces.part(node(), shard.num_elements), sum);
  current_codec_ +=
      reduction.codec->decode_sum(arrived.slice(0, below * packet_bytes), below, sum, reduction.context, stream);
  current_codec_ += reduction.codec->decode_sum(arrived.slice((node() + 1) * packet_bytes, above * packet_bytes), above,
                                                sum, reduction.context, stream);
  return sum;
}

void Communicator::all_reduce(Buffer data, double scale, const UnitKey& unit, const char* why_exact, Stream stream) {
  check_all_reduce(data, unit);
  run(Collective::kAllReduce, [&] {
    const Reduction reduction = decide(unit, scale, why_exact);
    if (data.num_elements > 0) {
      all_reduce_through_owners(data, scale, reduction, stream);
    }
  });
}

void Communicator::all_gather(ConstBuffer shard, Buffer gathered, Stream stream) {
  check_all_gather(shard, gathered);
  run(Collective::kAllGather, [&] {
    if (shard.num_elements == 0) {
      return;
    }
    const bool in_blocks = map_.block_placement();
    const Buffer by_node = in_blocks ? gathered : scratch_->take(gathered.num_elements, gathered.dtype);
    const ConstBuffer rail = gather_along_rail(shard, by_node, stream);
    gather_within_node(rail, by_node, stream);
    if (!in_blocks) {
      current_.packed_calls = 1;
      phase_ = "unpack";
      reorder(
          map_, by_node, gathered, [this](int rank) { return map_.position(rank); }, [](int rank) { return rank; });
    }
  });
}

// The shards of this rail, by node. With one rank a node that is the result, which then stands in `by_node`.
ConstBuffer Communicator::gather_along_rail(ConstBuffer shard, Buffer by_node, Stream stream) {
  if (num_nodes() == 1) {
    return shard;
  }
  const Step step(*this, "inter all-gather", &CollectiveStats::exchange_s);
  const Buffer rail = ranks_per_node() == 1 ? by_node : scratch_->take(num_nodes() * shard.num_elements, shard.dtype);
  tiers_.inter->all_gather(shard, rail, stream)->wait(stream);
  return rail;
}

// The shards of all ranks, node by node.
void Communicator::gather_within_node(ConstBuffer rail, Buffer by_node, Stream stream) {
  if (ranks_per_node() == 1) {
    convert(rail, by_node);
    return;
  }
  const Step step(*this, "intra all-gather", &CollectiveStats::intra_s);
  const int64_t shard_elements = rail.num_elements / num_nodes();
  std::vector<HandlePtr> pending;
  for (int owner = 0; owner < num_nodes(); ++owner) {
    const Buffer shards = by_node.part(owner, ranks_per_node() * shard_elements);
    pending.push_back(tiers_.intra->all_gather(rail.part(owner, shard_elements), shards, stream));
  }
  wait_for_all(pending, stream);
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

template <typename Body>
void Communicator::run(Collective collective, const Body& body) {
  {
    const std::lock_guard lock(mutex_);
    ISTHMUS_CHECK(TransportError, failure_.empty(), "the communicator of rank ", rank_, " is aborted: ", failure_);
  }
  current_ = {};
  current_codec_ = {};
  current_reason_ = nullptr;
  const Traffic intra = traffic_of(tiers_.intra);
  const Traffic inter = traffic_of(tiers_.inter);
  const Traffic flat = traffic_of(tiers_.flat);
  try {
    phase_ = "buffers";
    scratch_->reset();
    body();
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
  current_.intra = traffic_of(tiers_.intra) - intra;
  current_.inter = traffic_of(tiers_.inter) - inter;
  current_.flat = traffic_of(tiers_.flat) - flat;
  record(collective);
}

void Communicator::record(Collective collective) {
  const std::lock_guard lock(mutex_);
  stats_.collectives[static_cast<size_t>(collective)] += current_;
  stats_.codec += current_codec_;
  if (current_reason_ != nullptr) {
    ++stats_.exact_calls[current_reason_];
  } else if (collective != Collective::kAllGather) {
    ++stats_.compressed_calls;
    sent_elements_ += current_codec_.kept_elements;
  }
  stats_.num_units = units_->size();
  stats_.residual_bytes = units_->residual_bytes();
  stats_.scratch_bytes = scratch_->bytes();
}

// Everything here is decided from what is equal on all ranks: options, the key, and what was decided before.
Communicator::Reduction Communicator::decide(const UnitKey& key, double scale, const char* why_exact) {
  phase_ = "unit look-up";
  Reduction reduction;
  current_reason_ = exact_reason(key, scale, why_exact);
  if (current_reason_ == nullptr) {
    reduction.unit = units_->find_or_add(key, residual_sizes(key));
    current_reason_ = reduction.unit == nullptr ? "more than max_units units" : nullptr;
  }
  if (reduction.unit != nullptr) {
    reduction.unit->follow_scale(scale);
    reduction.context = {reduction.unit->hash, reduction.unit->step++};
    reduction.codec = &codec(options_.codec, key.dtype, ranks_per_node());
    reduction.result_codec = reduction.codec;
  } else {
    reduction.context = {key.hash(), num_reductions_};
    reduction.codec = &codec("none", key.dtype, ranks_per_node());
    reduction.result_codec = &codec("none", key.dtype, 1);  // a result is no sum to which more is added
  }
  ++num_reductions_;
  return reduction;
}

const char* Communicator::exact_reason(const UnitKey& key, double scale, const char* why_exact) const {
  if (options_.codec == "none") {
    return "codec none";
  }
  if (why_exact != nullptr) {
    return why_exact;
  }
  if (num_nodes() == 1) {
    return "one node";
  }
  if (key.dtype == DataType::kFloat64) {
    return "float64";
  }
  if (key.num_elements == 0) {
    return "empty";
  }
  if (scale == 0 || !std::isfinite(scale)) {
    return "scale is zero or not finite";  // what a residual holds cannot be kept under it
  }
  if (flat() && key.collective == Collective::kAllReduce) {
    return "all-reduce in a single tier";
  }
  if (key.num_elements < options_.min_elements) {
    return "below min_elements";
  }
  return unit_is_compressed(options_.units, key.name) ? nullptr : "excluded by policy (units)";
}

ResidualSizes Communicator::residual_sizes(const UnitKey& key) {
  const bool is_all_reduce = key.collective == Collective::kAllReduce;
  if (!codec(options_.codec, key.dtype, ranks_per_node()).keeps_residual() || num_nodes() == 1 ||
      (flat() && is_all_reduce)) {
    return {};
  }
  const int64_t chunk = chunk_elements(key.num_elements);
  return {flat() ? key.num_elements : (num_nodes() - 1) * chunk, is_all_reduce ? chunk : 0};
}

Codec& Communicator::codec(const std::string& name, DataType dtype, int num_summands) {
  std::unique_ptr<Codec>& codec = codecs_[{name, dtype, num_summands}];
  if (codec == nullptr) {
    codec = make_codec(name, options_, dtype, num_summands);
  }
  return *codec;
}

// Where the sum of a shard is taken: in the shard itself if it has the accumulate type.
Buffer Communicator::sum_target(Buffer shard) {
  const DataType sum_dtype = accumulate_dtype(shard.dtype);
  return shard.dtype == sum_dtype ? shard : scratch_->take(shard.num_elements, sum_dtype);
}

void Communicator::fail(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) {
      failure_ = reason;
    }
  }
  for (const auto& tier : {tiers_.intra, tiers_.inter, tiers_.flat}) {
    if (tier != nullptr) {
      tier->abort();
    }
  }
}

void Communicator::abort() { fail("abort() was called"); }

}  // namespace isthmus
