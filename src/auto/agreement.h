// Numbers on which all ranks of a group agree, over its tiers.
#pragma once

#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/device.h"

namespace isthmus {

// values[i] becomes the largest, or the sum, of all ranks' values[i]: the same bits on every rank. Along the rail, then
// within the node. Collective, with equally many values; called by the thread that uses the tiers. Completes after all
// work enqueued on the device, and on no rank before all ranks have called it. Throws TransportError if a tier fails.
void max_over_tiers(const Tiers& tiers, Device& device, std::vector<double>& values);
void sum_over_tiers(const Tiers& tiers, Device& device, std::vector<double>& values);

}  // namespace isthmus
