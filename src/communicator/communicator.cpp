#include "isthmus/communicator.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "communicator/path/flat_path.h"
#include "communicator/path/two_tier_path.h"
#include "communicator/path/weight_crossing.h"
#include "communicator/plan/planned_unit_states.h"
#include "communicator/plan/reduction_planner.h"
#include "communicator/run/run.h"
#include "communicator/run/scratch.h"
#include "communicator/run/statistics.h"
#include "communicator/run/tier_set.h"
#include "communicator/units/weight_replicas.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"

namespace isthmus {
namespace {

constexpr const char* kAboveMaxUnits = "more than max_units units";
constexpr const char* kInGraph = "in a CUDA graph";

bool is_flat(const Options& options) { return options.tiers == "flat"; }

Options validated(Options options) {
  options.validate();
  return options;
}

std::unique_ptr<TwoTierPath> make_path(const TierSet& tiers, Device& device, const Options& options) {
  if (is_flat(options)) {
    return std::make_unique<FlatPath>(tiers, device, options);
  }
  return std::make_unique<TwoTierPath>(tiers, device, options);
}

// The fault that the device found; null: it knows of none.
std::exception_ptr fault_of(Device& device) {
  try {
    device.throw_if_faulted();
  } catch (const std::exception&) {
    return std::current_exception();
  }
  return nullptr;
}

void check_unit(const UnitKey& unit, Collective collective, ConstBuffer data) {
  ISTHMUS_CHECK(Error, unit.num_elements == data.num_elements && unit.dtype == data.dtype, "unit \"", unit.name,
                "\" has ", unit.num_elements, " elements of ", to_string(unit.dtype), ", but its gradient has ",
                data.num_elements, " of ", to_string(data.dtype));
  ISTHMUS_CHECK(Error, unit.collective == collective, "unit \"", unit.name, "\" is one of ", to_string(unit.collective),
                ", but is reduced by ", to_string(collective));
}

void check_reduce_scatter(int num_ranks, ConstBuffer gradient, ConstBuffer shard, const UnitKey& unit) {
  ISTHMUS_CHECK(Error, gradient.dtype != DataType::kByte && gradient.dtype == shard.dtype, "reduce_scatter of ",
                to_string(gradient.dtype), " into ", to_string(shard.dtype), ": expected one floating type");
  ISTHMUS_CHECK(Error, gradient.num_elements == shard.num_elements * num_ranks, "reduce_scatter of ",
                gradient.num_elements, " elements over ", num_ranks, " ranks into ", shard.num_elements, ": expected ",
                num_ranks, " chunks of the shard's size");
  check_unit(unit, Collective::kReduceScatter, gradient);
}

void check_all_reduce(ConstBuffer data, const UnitKey& unit) {
  ISTHMUS_CHECK(Error, data.dtype != DataType::kByte, "all_reduce of ", to_string(data.dtype),
                ": expected a floating type");
  check_unit(unit, Collective::kAllReduce, data);
}

void check_all_gather(int num_ranks, ConstBuffer shard, ConstBuffer gathered) {
  ISTHMUS_CHECK(Error, shard.dtype == gathered.dtype, "all_gather of ", to_string(shard.dtype), " into ",
                to_string(gathered.dtype), ": expected one type");
  ISTHMUS_CHECK(Error, gathered.num_elements == shard.num_elements * num_ranks, "all_gather of ", shard.num_elements,
                " elements over ", num_ranks, " ranks into ", gathered.num_elements, ": expected ", num_ranks,
                " chunks of the shard's size");
}

}  // namespace

// The parts of a communicator. It runs collectives, and handles failures, phases and traffic.
struct Communicator::Parts {
  Parts(NodeMap map, int rank, Tiers given_tiers, Options given_options, std::shared_ptr<Device> given_device)
      : device(std::move(given_device)),
        options(validated(std::move(given_options))),
        tiers(std::move(map), rank, std::move(given_tiers), is_flat(options)),
        path(make_path(tiers, *device, options)),
        statistics(*device, options.max_units),
        planner(tiers, *device, options),
        units(tiers, planner, statistics),
        replicas(*device, options.max_units),
        weight_crossing(tiers, options, *device, [this] { throw_if_aborted(); }),
        reduction_scratch(*device),
        gather_scratch(device->is_host() ? nullptr : std::make_unique<ScratchInTurns>(*device)) {}

  // body(run) enqueues the collective's work and returns the plan, for a reduction. weights: the unit whose weights are
  // gathered; null: none.
  template <typename Body>
  EventPtr run(Collective collective, const CallerStreams& caller, const Body& body, const UnitKey* weights = nullptr);
  template <typename Body>
  std::optional<ReductionPlan> enqueue(Run& run, const Body& body);
  // Runs a reduction: reduce(run, plan) enqueues its work.
  template <typename Reduce>
  EventPtr run_reduction(const Reduction& reduction, const CallerStreams& caller, const Reduce& reduce);
  // Throws PacketError if a rank of this node reduces another unit, or other parameters of it, on the CPU. Packets tell
  // ranks of other nodes, but within a node gradients would be added up.
  void check_same_within_node(const ReductionPlan& plan);
  // Returns which of the flags are set on all ranks, in host memory.
  std::vector<uint8_t> set_on_all_ranks(Run& run, const std::vector<uint8_t>& flags);
  // Gathers the shards of this rank's rail from the updated replica, or just the shard.
  void gather_weights(Run& run, ConstBuffer shard, Buffer gathered, const UnitKey& unit);
  void throw_if_aborted();
  void throw_if_faulted();
  // Called where a packet does not decode: one that never arrived does not, either. Throws the failure of a tier, for
  // which it waits for as long as that may not be known.
  void wait_for_failing_tiers();
  // Returns whether this is the first failure.
  bool fail(const std::string& reason);
  MemoryUse memory() const;

  const std::shared_ptr<Device> device;
  const Options options;
  const TierSet tiers;
  const std::unique_ptr<const TwoTierPath> path;
  std::atomic<const char*> phase = "idle";
  Statistics statistics;
  ReductionPlanner planner;
  PlannedUnitStates units;
  WeightReplicas replicas;
  WeightCrossing weight_crossing;
  ScratchInTurns reduction_scratch;
  const std::unique_ptr<ScratchInTurns> gather_scratch;  // null on the CPU: reduction_scratch serves all

  std::mutex mutex;     // guards what follows
  std::string failure;  // why the communicator is aborted; empty: it works
};

template <typename Body>
std::optional<ReductionPlan> Communicator::Parts::enqueue(Run& run, const Body& body) {
  try {
    return body(run);
  } catch (const PacketError&) {
    wait_for_failing_tiers();
    throw;
  }
}

template <typename Body>
EventPtr Communicator::Parts::run(Collective collective, const CallerStreams& caller, const Body& body,
                                  const UnitKey* weights) {
  throw_if_faulted();
  const Traffic intra = tiers.intra_traffic();
  const Traffic inter = tiers.inter_traffic();
  const Traffic flat = tiers.flat_traffic();
  const bool gathers = collective == Collective::kAllGather && gather_scratch != nullptr;
  EventPtr done;
  try {
    phase = "buffers";
    const bool timed = options.device_timings && !device->is_host() && device->capture(caller.own) == 0;
    Run run({*device, statistics, phase}, gathers ? *gather_scratch : reduction_scratch, collective, caller, timed);
    const std::optional<ReductionPlan> plan = enqueue(run, body);
    done = run.end();
    phase = "idle";
    run.counters.calls = 1;
    run.counters.intra = tiers.intra_traffic() - intra;
    run.counters.inter = tiers.inter_traffic() - inter;
    run.counters.flat = tiers.flat_traffic() - flat;
    statistics.record(run, plan ? &*plan : nullptr, weights, memory());
  } catch (const std::bad_alloc&) {
    const std::string reason =
        detail::concatenate("no memory for phase \"", phase.load(), "\" of ", to_string(collective));
    fail(reason);
    throw Error(reason);
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
  return done;
}

template <typename Reduce>
EventPtr Communicator::Parts::run_reduction(const Reduction& reduction, const CallerStreams& caller,
                                            const Reduce& reduce) {
  planner.check_capture(reduction, caller.own);
  return run(reduction.unit.collective, caller, [&](Run& run) -> std::optional<ReductionPlan> {
    run.set_phase("unit look-up");
    const ReductionPlan plan =
        planner.plan(run, reduction, [&](const std::vector<uint8_t>& flags) { return set_on_all_ranks(run, flags); });
    run.set_phase("intra reduce-scatter");
    check_same_within_node(plan);
    reduce(run, plan);
    planner.finish(plan);
    return plan;
  });
}

void Communicator::Parts::check_same_within_node(const ReductionPlan& plan) {
  if (!device->is_host() || tiers.ranks_per_node() == 1) {
    return;
  }
  const std::string others = tiers.intra().ranks_of_other_label(plan.hash);
  ISTHMUS_CHECK(PacketError, others.empty(), "unit \"", plan.key->name, "\": ", others,
                " of this node reduces another unit, or other parameters of it: ", kWhyUnitsDiffer);
}

std::vector<uint8_t> Communicator::Parts::set_on_all_ranks(Run& run, const std::vector<uint8_t>& flags) {
  const auto num_flags = static_cast<int64_t>(flags.size());
  const Buffer own = run.take(num_flags, DataType::kByte);
  const Buffer gathered = run.take(tiers.world_size() * num_flags, DataType::kByte);
  device->write({flags.data(), num_flags, DataType::kByte}, own);
  path->all_gather(run, own, gathered);
  std::vector<uint8_t> all(static_cast<size_t>(gathered.num_elements));
  device->read(gathered, {all.data(), gathered.num_elements, DataType::kByte});
  std::vector<uint8_t> on_all(flags.size(), 1);
  for (size_t i = 0; i < all.size(); ++i) {
    on_all[i % flags.size()] &= all[i];
  }
  return on_all;
}

void Communicator::Parts::gather_weights(Run& run, ConstBuffer shard, Buffer gathered, const UnitKey& unit) {
  if (tiers.num_nodes() == 1) {
    path->all_gather(run, shard, gathered);
    return;
  }
  run.weights.gathers = 1;
  if (device->capture(run.tail()) != 0) {  // where the host cannot wait
    run.weights.whole[kInGraph] = 1;
    run.reason = kInGraph;
    path->all_gather(run, shard, gathered);
    return;
  }
  const int64_t rail_elements = tiers.num_nodes() * shard.num_elements;
  Replica* const replica = replicas.find_or_add(unit, rail_elements);
  if (replica == nullptr) {  // perhaps on this rank only: others may have dropped units
    Replica none;
    none.hash = unit.hash();
    none.shards = run.take(rail_elements, shard.dtype);
    weight_crossing.cross(run, shard, none);
    run.weights.whole = {{kAboveMaxUnits, 1}};
    run.reason = "above max_units weights cross whole";
    path->all_gather(run, shard, gathered, none.shards);
    return;
  }
  run.as_differences = true;
  weight_crossing.cross(run, shard, *replica);
  path->all_gather(run, shard, gathered, replica->shards);
  replica->last_use = run.event();
}

void Communicator::Parts::throw_if_aborted() {
  const std::lock_guard lock(mutex);
  ISTHMUS_CHECK(TransportError, failure.empty(), "the communicator of rank ", tiers.rank(), " is aborted: ", failure);
}

void Communicator::Parts::throw_if_faulted() {
  throw_if_aborted();
  const char* failed_phase = "exchange";
  try {
    const std::exception_ptr fault = fault_of(*device);
    if (fault == nullptr) {
      tiers.throw_if_failed();
    } else {
      wait_for_failing_tiers();
      failed_phase = "decode";
      std::rethrow_exception(fault);
    }
  } catch (const std::exception& error) {
    phase = failed_phase;
    if (!fail(error.what())) {
      throw_if_aborted();  // the tiers failed since another thread had aborted them: throw its reason
    }
    throw;
  }
}

void Communicator::Parts::wait_for_failing_tiers() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause(20);
  for (const auto deadline = Clock::now() + tiers.failure_delay();; std::this_thread::sleep_for(kPause)) {
    throw_if_aborted();
    tiers.throw_if_failed();
    if (Clock::now() >= deadline) {
      return;
    }
  }
}

bool Communicator::Parts::fail(const std::string& reason) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex);
    is_first = failure.empty();
    if (is_first) {
      failure = reason;
    }
  }
  tiers.abort();
  return is_first;
}

MemoryUse Communicator::Parts::memory() const {
  return {planner.units().size(), planner.units().residual_bytes(), replicas.bytes(),
          reduction_scratch.bytes() + (gather_scratch != nullptr ? gather_scratch->bytes() : 0),
          planner.units().num_dropped()};
}

Communicator::Communicator(NodeMap map, int rank, Tiers tiers, Options options, std::shared_ptr<Device> device)
    : parts_(std::make_unique<Parts>(std::move(map), rank, std::move(tiers), std::move(options), std::move(device))) {}

Communicator::~Communicator() = default;

EventPtr Communicator::reduce_scatter(ConstBuffer gradient, Buffer shard, const Reduction& reduction, Stream stream,
                                      std::optional<Stream> input_stream) {
  check_reduce_scatter(parts_->tiers.world_size(), gradient, shard, reduction.unit);
  return parts_->run_reduction(reduction, {stream, input_stream}, [&](Run& run, const ReductionPlan& plan) {
    if (shard.num_elements > 0) {
      parts_->path->reduce_scatter(run, plan, gradient, shard);
    }
  });
}

EventPtr Communicator::all_reduce(Buffer data, const Reduction& reduction, Stream stream) {
  check_all_reduce(data, reduction.unit);
  return parts_->run_reduction(reduction, {stream, {}}, [&](Run& run, const ReductionPlan& plan) {
    if (data.num_elements > 0) {
      parts_->path->all_reduce(run, plan, data);
    }
  });
}

EventPtr Communicator::all_gather(ConstBuffer shard, Buffer gathered, Stream stream) {
  check_all_gather(parts_->tiers.world_size(), shard, gathered);
  return parts_->run(Collective::kAllGather, {stream, {}}, [&](Run& run) -> std::optional<ReductionPlan> {
    if (shard.num_elements > 0) {
      parts_->path->all_gather(run, shard, gathered);
    }
    return std::nullopt;
  });
}

EventPtr Communicator::gather_weights(ConstBuffer shard, Buffer gathered, const UnitKey& unit, Stream stream) {
  check_all_gather(parts_->tiers.world_size(), shard, gathered);
  check_unit(unit, Collective::kAllGather, gathered);
  const auto body = [&](Run& run) -> std::optional<ReductionPlan> {
    if (shard.num_elements > 0) {
      parts_->gather_weights(run, shard, gathered, unit);
    }
    return std::nullopt;
  };
  return parts_->run(Collective::kAllGather, {stream, {}}, body, &unit);
}

void Communicator::drop_weights(const std::string& name) { parts_->replicas.drop(name); }

const char* Communicator::phase() const { return parts_->phase; }

void Communicator::throw_if_faulted() { parts_->throw_if_faulted(); }

void Communicator::abort() { parts_->fail("abort() was called"); }

UnitStates& Communicator::units() { return parts_->units; }

Stats Communicator::stats() { return parts_->statistics.snapshot(); }

void Communicator::reset_stats() { parts_->statistics.reset(); }

Device& Communicator::device() const { return *parts_->device; }

const NodeMap& Communicator::node_map() const { return parts_->tiers.map(); }

}  // namespace isthmus
