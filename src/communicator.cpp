#include "isthmus/communicator.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "codec/tagc_flat.h"
#include "communicator_step.h"
#include "isthmus/error.h"
#include "kernels/device.h"
#include "policy.h"
#include "scratch.h"
#include "unit_table.h"

namespace isthmus {
namespace {

Traffic traffic_of(const std::shared_ptr<Transport>& tier) { return tier ? tier->traffic() : Traffic{}; }

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

// Null: none is known.
std::exception_ptr fault_of(Device& device) {
  try {
    device.throw_if_faulted();
  } catch (const std::exception&) {
    return std::current_exception();
  }
  return nullptr;
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
  ISTHMUS_CHECK(OptionError, !flat() || device_->is_host(), "tiers=flat is for the CPU, not for ", device_->name());
  ISTHMUS_CHECK(Error, rank_ >= 0 && rank_ < map_.world_size(), "rank ", rank_, " is not in 0..",
                map_.world_size() - 1);
  check_tiers();
  if (flat() && options_.codec == "tagc") {
    tagc_flat_ = std::make_unique<TagcFlat>(options_, map_.world_size());
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
  });
}

void Communicator::reduce_to_shard(ConstBuffer gradient, Buffer shard, const Reduction& reduction) {
  if (flat()) {
    reduce_scatter_flat(gradient, shard, reduction);
  } else {
    reduce_scatter_in_two_tiers(gradient, shard, reduction);
  }
}

// The main path.
void Communicator::reduce_scatter_in_two_tiers(ConstBuffer gradient, Buffer shard, const Reduction& reduction) {
  const ConstBuffer pieces = sum_within_node(gradient);
  const Buffer packets = encode(pieces, reduction);
  const Buffer arrived = exchange_along_rail(packets);
  const Buffer sum = decode_sum(pieces, arrived, reduction, shard);
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

// One packet for each other node, at that node's place; this node's own place stays unused.
Buffer Communicator::encode(ConstBuffer pieces, const Reduction& reduction) {
  const Step step(*this, "encode", Lane::kEncode, &CollectiveStats::encode_s);
  Codec& codec = *reduction.codec;
  const int64_t piece_elements = pieces.num_elements / num_nodes();
  const int64_t packet_bytes = codec.packet_bytes(piece_elements);
  const Buffer packets = take_scratch(num_nodes() * packet_bytes, DataType::kByte);
  const Workspace with = workspace(codec.encode_scratch_bytes(piece_elements));
  const PacketContext context = context_for(reduction, PacketUse::kPiece);
  int residual_index = 0;
  for (int owner = 0; owner < num_nodes(); ++owner) {
    if (owner == node()) {
      continue;
    }
    const Buffer residual =
        codec.keeps_residual() ? reduction.unit->residual.part(residual_index++, piece_elements) : Buffer{};
    current_codec_ +=
        codec.encode(pieces.part(owner, piece_elements), residual, packets.part(owner, packet_bytes), context, with);
  }
  count_packets(reduction, PacketUse::kPiece);
  return packets;
}

Buffer Communicator::exchange_along_rail(Buffer packets) {
  if (num_nodes() == 1) {
    return packets;
  }
  const Step step(*this, "inter exchange", Lane::kInter, &CollectiveStats::exchange_s);
  const Buffer arrived = take_scratch(packets.num_elements, DataType::kByte);
  tiers_.inter->all_to_all(packets, arrived, here_)->wait(here_);
  return arrived;
}

// The own piece, which never crossed, and what arrived from the other nodes, in their order.
Buffer Communicator::decode_sum(ConstBuffer pieces, ConstBuffer arrived, const Reduction& reduction, Buffer shard) {
  const Step step(*this, "decode", Lane::kDecode, &CollectiveStats::decode_s);
  Codec& codec = *reduction.codec;
  const int64_t packet_bytes = arrived.num_elements / num_nodes();
  const Buffer sum = sum_target(shard);
  const int below = node();
  const int above = num_nodes() - node() - 1;
  const Workspace with = workspace(codec.decode_scratch_bytes(shard.num_elements, std::max(below, above)));
  const PacketContext context = context_for(reduction, PacketUse::kArrivedPiece);
  device_->convert(pieces.part(node(), shard.num_elements), sum, here_);
  current_codec_ += codec.decode_sum(arrived.slice(0, below * packet_bytes), below, sum, context, with);
  current_codec_ +=
      codec.decode_sum(arrived.slice((node() + 1) * packet_bytes, above * packet_bytes), above, sum, context, with);
  count_packets(reduction, PacketUse::kArrivedPiece);
  return sum;
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

void Communicator::begin(Stream caller, Collective collective) {
  collective_ = collective;
  current_ = {};
  current_codec_ = {};
  current_reason_ = nullptr;
  here_ = caller;
  entered_ = false;
  timed_ = options_.device_timings && !device_->is_host() && device_->capture(caller) == 0;
  const bool gathers = collective == Collective::kAllGather && gather_scratch_ != nullptr;
  scratch_ = &(gathers ? gather_scratch_ : reduction_scratch_)->next(caller);
}

void Communicator::enter(Lane lane) {
  const Stream next = device_->lane(lane);
  device_->order(here_, next);
  here_ = next;
  if (!std::exchange(entered_, true) && scratch_->done != nullptr) {
    device_->wait(scratch_->done, here_);
  }
}

EventPtr Communicator::event_here() {
  EventPtr event = device_->make_event();
  device_->record(event, here_);
  return event;
}

EventPtr Communicator::end() {
  EventPtr done = event_here();
  if (entered_) {  // else nothing used the scratch memory, nor waited for its last use
    scratch_->done = done;
  }
  return done;
}

Buffer Communicator::take_scratch(int64_t num_elements, DataType dtype) {
  return scratch_->memory.take(num_elements, dtype);
}

Workspace Communicator::workspace(int64_t scratch_bytes) {
  return {here_, scratch_bytes == 0 ? Buffer{} : take_scratch(scratch_bytes, DataType::kByte)};
}

PacketContext Communicator::context_for(const Reduction& reduction, PacketUse use) {
  PacketContext context = context_of(reduction.hash, reduction.step, use);
  if (reduction.contexts != nullptr) {
    kernels::DeviceContext* words = reduction.contexts + static_cast<int>(use);
    if (reduction.unit == nullptr) {
      device_->set_context(words, context, here_);
    }
    context.on_device = words;
  }
  return context;
}

void Communicator::count_packets(const Reduction& reduction, PacketUse use) {
  if (reduction.contexts != nullptr && reduction.unit != nullptr) {
    device_->next_step(reduction.contexts + static_cast<int>(use), here_);
  }
}

Traffic Communicator::intra_traffic() const {
  Traffic traffic = traffic_of(tiers_.intra);
  return traffic += traffic_of(tiers_.gather_intra);
}

Traffic Communicator::inter_traffic() const {
  Traffic traffic = traffic_of(tiers_.inter);
  return traffic += traffic_of(tiers_.gather_inter);
}

void Communicator::record() {
  const std::lock_guard lock(mutex_);
  stats_.collectives[static_cast<size_t>(collective_)] += current_;
  stats_.codec += current_codec_;
  if (current_reason_ != nullptr) {
    ++stats_.exact_calls[current_reason_];
  } else if (collective_ != Collective::kAllGather) {
    ++stats_.compressed_calls;
    sent_elements_ += current_codec_.kept_elements;
  }
  stats_.num_units = units_->size();
  stats_.residual_bytes = units_->residual_bytes();
  stats_.scratch_bytes = reduction_scratch_->bytes() + (gather_scratch_ ? gather_scratch_->bytes() : 0);
  add_timings();
}

// Of what is done by now. Steps end in another order than they began where they are on several lanes.
void Communicator::add_timings() {
  const auto is_known = [this](const Timing& timing) {
    const std::optional<double> seconds = device_->seconds_between(timing.begin, timing.end);
    stats_.collectives[static_cast<size_t>(timing.collective)].*timing.seconds += seconds.value_or(0);
    return seconds.has_value();
  };
  timings_.erase(std::remove_if(timings_.begin(), timings_.end(), is_known), timings_.end());
}

// Everything here is decided from what is equal on all ranks: options, the key, and what was decided before.
Communicator::Reduction Communicator::decide(const UnitKey& key, double scale, const char* why_exact) {
  phase_ = "unit look-up";
  const double divisor = flat() ? 1 : piece_type(key.dtype).divisor;
  const int num_summands = divisor == 1 ? ranks_per_node() : 1;  // others have been divided already
  Reduction reduction;
  reduction.scale = scale * divisor;
  current_reason_ = exact_reason(key, scale, why_exact);
  if (current_reason_ == nullptr) {
    reduction.unit = units_->find_or_add(key, residual_sizes(key));
    current_reason_ = reduction.unit == nullptr ? "more than max_units units" : nullptr;
  }
  if (reduction.unit != nullptr) {
    reduction.unit->follow_scale(*device_, reduction.scale);
    reduction.hash = reduction.unit->hash;
    reduction.step = reduction.unit->step++;
    reduction.contexts = reduction.unit->contexts.get();
    reduction.codec = &codec(options_.codec, key.dtype, num_summands);
    reduction.result_codec = reduction.codec;
  } else {
    reduction.hash = key.hash();
    reduction.step = num_reductions_;
    reduction.contexts = plain_contexts_.get();
    reduction.codec = &codec("none", key.dtype, num_summands);
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

// How pieces are summed within the node, and their type.
SumType Communicator::piece_type(DataType dtype) const {
  return ranks_per_node() == 1 ? SumType{device_->piece_dtype(dtype)} : tiers_.intra->sum_type(dtype);
}

Codec& Communicator::codec(const std::string& name, DataType dtype, int num_summands) {
  std::unique_ptr<Codec>& codec = codecs_[{name, dtype, num_summands}];
  if (codec == nullptr) {
    codec = device_->make_codec(name, options_, dtype, num_summands);
  }
  return *codec;
}

// Where the sum of a shard is taken: in the shard itself if it has the accumulate type.
Buffer Communicator::sum_target(Buffer shard) {
  const DataType sum_dtype = accumulate_dtype(shard.dtype);
  return shard.dtype == sum_dtype ? shard : take_scratch(shard.num_elements, sum_dtype);
}

void Communicator::fail(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) {
      failure_ = reason;
    }
  }
  for (const auto& tier : all_tiers()) {
    if (tier != nullptr) {
      tier->abort();
    }
  }
}

void Communicator::throw_if_faulted() {
  {
    const std::lock_guard lock(mutex_);
    ISTHMUS_CHECK(TransportError, failure_.empty(), "the communicator of rank ", rank_, " is aborted: ", failure_);
  }
  const char* phase = "exchange";
  try {
    const std::exception_ptr fault = fault_of(*device_);
    for (const auto& tier : all_tiers()) {  // a packet that did not arrive does not decode, either
      if (tier != nullptr) {
        tier->throw_if_failed();
      }
    }
    if (fault != nullptr) {
      phase = "decode";
      std::rethrow_exception(fault);
    }
  } catch (const std::exception& error) {
    phase_ = phase;
    fail(error.what());
    throw;
  }
}

void Communicator::abort() { fail("abort() was called"); }

}  // namespace isthmus
