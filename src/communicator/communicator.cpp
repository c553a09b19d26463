#include "isthmus/communicator.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "communicator/path/flat_path.h"
#include "communicator/path/two_tier_path.h"
#include "communicator/path/weight_path.h"
#include "communicator/plan/reduction_planner.h"
#include "communicator/run/run.h"
#include "communicator/run/scratch.h"
#include "communicator/run/statistics.h"
#include "communicator/run/tier_set.h"
#include "communicator/units/group_units.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

Options validated(Options options) {
  options.validate();
  return options;
}

std::unique_ptr<Path> make_path(const TierSet& tiers, Device& device, const Options& options) {
  if (options.is_flat()) {
    return std::make_unique<FlatPath>(tiers, device, options);
  }
  return std::make_unique<TwoTierPath>(tiers, device, options);
}

// data: all that the unit's collective reduces or gathers.
void check_unit(const Reduction& call, Collective collective, ConstBuffer data, int num_ranks) {
  ISTHMUS_CHECK(Error, call.unit != nullptr, to_string(collective), " of no unit");
  const UnitKey& unit = call.unit->key;
  const int64_t num_elements = num_elements_of(call, num_ranks);
  ISTHMUS_CHECK(Error, num_elements == data.num_elements && unit.dtype == data.dtype, "unit \"", unit.name, "\" has ",
                num_elements, " elements of ", to_string(unit.dtype), ", but its gradient has ", data.num_elements,
                " of ", to_string(data.dtype));
  ISTHMUS_CHECK(Error, unit.collective == collective, "unit \"", unit.name, "\" is one of ", to_string(unit.collective),
                ", but is reduced by ", to_string(collective));
}

void check_all_gather(int num_ranks, ConstBuffer shard, ConstBuffer gathered) {
  ISTHMUS_CHECK(Error, shard.dtype == gathered.dtype, "all_gather of ", to_string(shard.dtype), " into ",
                to_string(gathered.dtype), ": expected one type");
  ISTHMUS_CHECK(Error, gathered.num_elements == shard.num_elements * num_ranks, "all_gather of ", shard.num_elements,
                " elements over ", num_ranks, " ranks into ", gathered.num_elements, ": expected ", num_ranks,
                " chunks of the shard's size");
}

}  // namespace

// The parts of a communicator. It runs collectives, and handles failures and phases.
struct Communicator::Impl {
  Impl(NodeMap map, int rank, Tiers given_tiers, Options given_options, std::shared_ptr<Device> given_device)
      : device(std::move(given_device)),
        options(validated(std::move(given_options))),
        tiers(std::move(map), rank, std::move(given_tiers), options.is_flat()),
        path(make_path(tiers, *device, options)),
        statistics(*device, options.max_units),
        units(tiers, *device, options, statistics),
        planner(tiers, *device, options, units),
        reduction_scratch(*device),
        gather_scratch(device->is_host() ? nullptr : std::make_unique<ScratchInTurns>(*device)),
        weights(tiers, options, *device, *path, [this] { throw_if_aborted(); }) {}

  // A collective that begins now.
  void start(std::optional<Run>& run, Collective collective, const CallerStreams& caller) {
    phase = Phase::kBuffers;
    const bool gathers = collective == Collective::kAllGather && gather_scratch != nullptr;
    const bool timed = options.device_timings && !device->is_host() && device->capture(caller.own) == 0;
    run.emplace(RunParts{*device, statistics, phase}, gathers ? *gather_scratch : reduction_scratch, collective, caller,
                timed);
  }

  // Calls body(), a part of a collective. If it throws, aborts the communicator.
  template <typename Body>
  void abort_on_error(Collective collective, const Body& body) {
    try {
      try {
        body();
      } catch (const PacketError&) {
        wait_for_failing_tiers();
        throw;
      }
      phase = Phase::kIdle;
    } catch (const std::bad_alloc&) {
      const std::string reason =
          detail::concatenate("no memory for phase \"", to_string(phase), "\" of ", to_string(collective));
      fail(reason);
      throw Error(reason);
    } catch (const std::exception& error) {
      fail(error.what());
      throw;
    }
  }

  // Ends a collective, and returns its event.
  EventPtr end(Run& run) {
    EventPtr done = run.end();
    run.counters.calls = 1;
    statistics.memory->scratch_bytes =
        reduction_scratch.bytes() + (gather_scratch != nullptr ? gather_scratch->bytes() : 0);
    statistics.record(run);
    return done;
  }

  // body(run) enqueues the collective's work.
  template <typename Body>
  EventPtr run(Collective collective, const CallerStreams& caller, const Body& body) {
    throw_if_faulted();
    EventPtr done;
    abort_on_error(collective, [&] {
      std::optional<Run> run;
      start(run, collective, caller);
      body(*run);
      tiers.take_counts(run->counters, run->peer_waits);
      done = end(*run);
    });
    return done;
  }

  // Runs a reduction: reduce(run, plan) enqueues its work.
  template <typename Reduce>
  EventPtr run_reduction(const Reduction& reduction, Stream stream, const Reduce& reduce) {
    units.require_own(*reduction.unit);
    planner.check_capture(reduction, stream);
    return run(reduction.unit->key.collective, {stream, reduction.input_stream}, [&](Run& run) {
      run.set_phase(Phase::kPlan);
      const ReductionPlan plan = planner.plan(run, reduction);
      run.set_phase(Phase::kIntraReduceScatter);
      reduce(run, plan);
      if (plan.sends_residual) {
        plan.unit->drop_residuals();
      }
      run.unit = &plan.unit->key;
      run.record = plan.unit->record.get();
      run.reason = plan.why_exact;
      run.codec = plan.codecs.pieces->name();
      if (plan.has_state) {
        run.settings = plan.unit->settings;
        run.error = plan.unit->error;
      }
    });
  }

  void throw_if_aborted() {
    const std::lock_guard lock(mutex);
    ISTHMUS_CHECK(TransportError, failure.empty(), "the communicator of rank ", tiers.rank(), " is aborted: ", failure);
  }

  void throw_if_faulted() {
    throw_if_aborted();
    Phase failed_phase = Phase::kExchange;
    try {
      try {
        device->throw_if_faulted();
      } catch (const std::exception&) {
        wait_for_failing_tiers();
        failed_phase = Phase::kDecode;
        throw;
      }
      tiers.throw_if_failed();
    } catch (const std::exception& error) {
      phase = failed_phase;
      if (!fail(error.what())) {
        throw_if_aborted();  // the tiers failed since another thread had aborted them: throw its reason
      }
      throw;
    }
  }

  // Called where a packet does not decode: one that never arrived does not, either. Throws the failure of a tier, for
  // which it waits for as long as that may not be known.
  void wait_for_failing_tiers() {
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

  // Returns whether this is the first failure, which aborts the tiers, beside other ends.
  bool fail(const std::string& reason, std::vector<std::function<void()>> ends = {}) {
    bool is_first = false;
    {
      const std::lock_guard lock(mutex);
      is_first = failure.empty();
      if (is_first) {
        failure = reason;
        tiers.add_aborts(ends);
      }
    }
    run_in_threads(std::move(ends), kAbortPatience);
    return is_first;
  }

  const std::shared_ptr<Device> device;
  const Options options;
  const TierSet tiers;
  const std::unique_ptr<const Path> path;
  std::atomic<Phase> phase = Phase::kIdle;
  Statistics statistics;
  GroupUnits units;
  ReductionPlanner planner;
  ScratchInTurns reduction_scratch;
  const std::unique_ptr<ScratchInTurns> gather_scratch;  // null on the CPU: reduction_scratch serves all
  WeightPath weights;

  std::mutex mutex;     // guards what follows
  std::string failure;  // why the communicator is aborted; empty: it works
};

// A gather of weights, from its begin to its end.
class Communicator::Gather final : public WeightGather, public GatherUnderWay {
 public:
  Gather(Impl& impl, ConstBuffer shard_, Buffer gathered_, UnitPtr unit_)
      : GatherUnderWay(shard_, gathered_, std::move(unit_)), impl_(impl) {}

  static WeightGatherPtr begin(const std::shared_ptr<Gather>& self, Stream stream) {
    Impl& impl = self->impl_;
    impl.units.require_own(*self->unit);
    impl.throw_if_faulted();
    impl.abort_on_error(Collective::kAllGather, [&] {
      impl.start(self->run, Collective::kAllGather, {stream, {}});
      impl.units.take(self->unit);
      self->run->unit = &self->unit->key;
      self->run->record = self->unit->record.get();
      impl.weights.begin(self);
      impl.tiers.take_counts(self->run->counters, self->run->peer_waits);
      self->begun_ = self->is_over() ? self->end() : self->run->end();
    });
    return self;
  }

  EventPtr begun() const override { return begun_; }

  void wait_for_headers() override {
    if (run) {
      impl_.abort_on_error(Collective::kAllGather, [&] {
        impl_.phase = Phase::kInterHeaders;
        impl_.weights.wait_for_headers(begun_);
      });
    }
  }

  EventPtr finish() override {
    wait_for_headers();
    if (run) {
      impl_.throw_if_faulted();
      impl_.abort_on_error(Collective::kAllGather, [&] {
        impl_.weights.finish(*this);
        impl_.tiers.take_counts(run->counters, run->peer_waits);
        end();
      });
    }
    return done_;
  }

 private:
  EventPtr end() {
    done_ = impl_.end(*run);
    run.reset();
    return done_;
  }

  Impl& impl_;
  EventPtr begun_;
  EventPtr done_;  // of the whole gather, once it is over
};

Communicator::Communicator(NodeMap map, int rank, Tiers tiers, Options options, std::shared_ptr<Device> device)
    : impl_(std::make_unique<Impl>(std::move(map), rank, std::move(tiers), std::move(options), std::move(device))) {}

Communicator::~Communicator() = default;

EventPtr Communicator::reduce_scatter(ConstBuffer gradient, Buffer shard, const Reduction& reduction, Stream stream) {
  const int num_ranks = impl_->tiers.world_size();
  ISTHMUS_CHECK(Error, gradient.dtype != DataType::kByte && gradient.dtype == shard.dtype, "reduce_scatter of ",
                to_string(gradient.dtype), " into ", to_string(shard.dtype), ": expected one floating type");
  ISTHMUS_CHECK(Error, gradient.num_elements == shard.num_elements * num_ranks, "reduce_scatter of ",
                gradient.num_elements, " elements over ", num_ranks, " ranks into ", shard.num_elements, ": expected ",
                num_ranks, " chunks of the shard's size");
  check_unit(reduction, Collective::kReduceScatter, gradient, num_ranks);
  return impl_->run_reduction(reduction, stream, [&](Run& run, const ReductionPlan& plan) {
    if (shard.num_elements > 0) {
      run.admit_output(Lane::kDecode);
      impl_->path->reduce_scatter(run, plan, gradient, shard);
    }
  });
}

EventPtr Communicator::all_reduce(Buffer data, const Reduction& reduction, Stream stream) {
  ISTHMUS_CHECK(Error, data.dtype != DataType::kByte, "all_reduce of ", to_string(data.dtype),
                ": expected a floating type");
  check_unit(reduction, Collective::kAllReduce, data, impl_->tiers.world_size());
  return impl_->run_reduction(reduction, stream, [&](Run& run, const ReductionPlan& plan) {
    if (data.num_elements > 0) {
      impl_->path->all_reduce(run, plan, data);
    }
  });
}

EventPtr Communicator::all_gather(ConstBuffer shard, Buffer gathered, Stream stream) {
  check_all_gather(impl_->tiers.world_size(), shard, gathered);
  return impl_->run(Collective::kAllGather, {stream, {}}, [&](Run& run) {
    if (shard.num_elements > 0) {
      impl_->path->all_gather(run, shard, gathered);
    }
  });
}

WeightGatherPtr Communicator::gather_weights(ConstBuffer shard, Buffer gathered, const UnitPtr& unit, Stream stream) {
  check_all_gather(impl_->tiers.world_size(), shard, gathered);
  check_unit({.unit = unit}, Collective::kAllGather, gathered, impl_->tiers.world_size());
  return Gather::begin(std::make_shared<Gather>(*impl_, shard, gathered, unit), stream);
}

Phase Communicator::phase() const { return impl_->phase; }

void Communicator::throw_if_faulted() { impl_->throw_if_faulted(); }

void Communicator::abort(std::vector<std::function<void()>> beside) {
  impl_->fail("abort() was called", std::move(beside));
}

bool Communicator::is_aborted() const {
  const std::lock_guard lock(impl_->mutex);
  return !impl_->failure.empty();
}

UnitStates& Communicator::units() { return impl_->units; }

Stats Communicator::stats() { return impl_->statistics.snapshot(); }

void Communicator::reset_stats() { impl_->statistics.reset(); }

Device& Communicator::device() const { return *impl_->device; }

const NodeMap& Communicator::node_map() const { return impl_->tiers.map(); }

}  // namespace isthmus
