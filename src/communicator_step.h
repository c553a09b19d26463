// Private to the communicator's source files.
#pragma once

#include <chrono>

#include "isthmus/communicator.h"

namespace isthmus {

// One step of a collective: names the phase, and adds its time.
class Communicator::Step {
 public:
  Step(Communicator& communicator, const char* phase, double CollectiveStats::*seconds)
      : seconds_(communicator.current_.*seconds), begin_(Clock::now()) {
    communicator.phase_ = phase;
  }
  ~Step() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point begin_;
};

}  // namespace isthmus
