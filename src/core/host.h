// The CPU as a device whose phases somebody is told of.
#pragma once

#include <memory>

#include "isthmus/device.h"

namespace isthmus {

// Called around each phase, in the thread that works. Ranges nest.
struct PhaseRanges {
  void (*begin)(const char* name) = [](const char* /*name*/) {};
  void (*end)() = [] {};
};

std::shared_ptr<Device> make_host_device(PhaseRanges ranges);

}  // namespace isthmus
