#include "communicator/run/run.h"

#include <exception>
#include <utility>

namespace isthmus {

Run::Run(const RunParts& parts, ScratchInTurns& scratch, Collective collective, const CallerStreams& caller, bool timed)
    : parts_(parts),
      collective_(collective),
      scratch_(scratch.next(caller.own)),
      caller_(caller),
      tail_(caller.input.value_or(caller.own)),
      timed_(timed) {
  scratch_.is_held = true;
}

void Run::enter(Lane lane) {
  device().order(tail_, device().lane(lane));
  arrive(lane);
}

void Run::enter_after(const EventPtr& event, Lane lane) {
  device().wait(event, device().lane(lane));
  arrive(lane);
}

void Run::admit_output(Lane lane) {
  if (caller_.input) {  // if not, the first lane is behind the caller's stream, and this lane is behind that one
    device().order(caller_.own, device().lane(lane));
  }
}

void Run::arrive(Lane lane) {
  tail_ = device().lane(lane);
  if (!std::exchange(entered_, true) && scratch_.done != nullptr) {
    device().wait(scratch_.done, tail_);
  }
}

EventPtr Run::event() const {
  EventPtr event = device().make_event();
  device().record(event, tail_);
  return event;
}

EventPtr Run::end() {
  EventPtr done = event();
  if (entered_) {  // if not, the scratch memory was not used and its last use not waited for
    scratch_.done = done;
  }
  return done;
}

Buffer Run::take(int64_t num_elements, DataType dtype) { return scratch_.memory.take(num_elements, dtype); }

Workspace Run::workspace(int64_t scratch_bytes) {
  return {tail_, scratch_bytes == 0 ? Buffer{} : take(scratch_bytes, DataType::kByte)};
}

Step::Step(Run& run, Phase phase, Lane lane, double CollectiveStats::*seconds, const std::optional<EventPtr>& after)
    : Step(run, phase, seconds) {
  after ? run_.enter_after(*after, lane) : run_.enter(lane);
  begin_ = Clock::now();
  if (run_.timed_) {
    begin_event_ = run_.event();
  }
}

Step::Step(Run& run, Phase phase, double CollectiveStats::*seconds) : run_(run), seconds_(seconds) {
  run_.set_phase(phase);
  run_.device().begin_range(to_string(phase));
}

Step::~Step() {
  if (run_.device().is_host()) {
    run_.counters.*seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  if (begin_event_ != nullptr) {
    try {
      run_.parts_.statistics.add_timing({begin_event_, run_.event(), run_.collective_, seconds_});
    } catch (const std::exception&) {
      // The device has failed, and the next call reports it. Only a timing is lost.
    }
  }
  run_.device().end_range();
}

}  // namespace isthmus
