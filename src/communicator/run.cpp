// What every collective does around its own work: streams, scratch memory, statistics and failure.
#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "communicator/scratch.h"
#include "communicator/units/unit_table.h"
#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "kernels/block/device.h"

namespace isthmus {
namespace {

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

Traffic Communicator::traffic_of(const std::shared_ptr<Transport>& tier) { return tier ? tier->traffic() : Traffic{}; }

void Communicator::begin(Stream caller, Collective collective) {
  collective_ = collective;
  current_ = {};
  current_codec_ = {};
  current_reason_ = nullptr;
  current_key_ = nullptr;
  current_unit_ = {};
  here_ = caller;
  entered_ = false;
  timed_ = options_.device_timings && !device_->is_host() && device_->capture(caller) == 0;
  const bool gathers = collective == Collective::kAllGather && gather_scratch_ != nullptr;
  scratch_ = &(gathers ? gather_scratch_ : reduction_scratch_)->next(caller);
}

void Communicator::enter(Lane lane) {
  device_->order(here_, device_->lane(lane));
  arrive(lane);
}

void Communicator::enter_after(const EventPtr& event, Lane lane) {
  device_->wait(event, device_->lane(lane));
  arrive(lane);
}

void Communicator::arrive(Lane lane) {
  here_ = device_->lane(lane);
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

PacketContext Communicator::context_for(const Reduction& reduction, PacketUse use, int sender, uint8_t segment) {
  PacketContext context = context_of(reduction.hash, reduction.step, use);
  context.segment = segment;
  context.sender = static_cast<uint16_t>(sender);
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
  record_unit();
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
