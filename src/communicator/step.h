// Private to the communicator's source files.
#pragma once

#include <chrono>
#include <exception>

#include "isthmus/communicator.h"

namespace isthmus {

// Why a reduction is exact whose unit's codec is chosen: the choice says more. One object, which is compared by
// address.
inline constexpr char kChosenExact[] = "chosen to be exact";

// One step of a collective: takes place on a lane, names the phase, and adds its time.
class Communicator::Step {
 public:
  Step(Communicator& communicator, const char* phase, Lane lane, double CollectiveStats::*seconds)
      : Step(communicator, phase, seconds) {
    communicator.enter(lane);
    begin();
  }
  // Waits for `after` alone, and not for what was enqueued last.
  Step(Communicator& communicator, const char* phase, Lane lane, const EventPtr& after,
       double CollectiveStats::*seconds)
      : Step(communicator, phase, seconds) {
    communicator.enter_after(after, lane);
    begin();
  }
  ~Step() {
    if (communicator_.device_->is_host()) {
      communicator_.current_.*seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count();
    }
    if (begin_event_ != nullptr) {
      try {
        const EventPtr end = communicator_.event_here();
        const std::lock_guard lock(communicator_.mutex_);
        communicator_.timings_.push_back({begin_event_, end, communicator_.collective_, seconds_});
      } catch (const std::exception&) {
        // The device has failed: the next call for it says so. What is lost is a time.
      }
    }
    communicator_.device_->end_range();
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  Step(Communicator& communicator, const char* phase, double CollectiveStats::*seconds)
      : communicator_(communicator), seconds_(seconds) {
    communicator.phase_ = phase;
    communicator.device_->begin_range(phase);
  }
  void begin() {
    begin_ = Clock::now();
    if (communicator_.timed_) {
      begin_event_ = communicator_.event_here();
    }
  }

  Communicator& communicator_;
  double CollectiveStats::*seconds_;
  Clock::time_point begin_;
  EventPtr begin_event_;
};

}  // namespace isthmus
