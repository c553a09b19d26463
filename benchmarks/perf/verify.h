// What the results of collectives must be.
#pragma once

#include <cstdint>
#include <vector>

#include "isthmus/communicator.h"
#include "perf/ranks.h"

namespace isthmus::perf {

inline constexpr int kVerifiedSteps = 2;

// Gradients for verification are small whole numbers, different for each rank and place, so that all sums are exact in
// every type, in any order, and after kVerifiedSteps.
double test_value(int num_ranks, int rank, int64_t index);
double test_sum(int num_ranks, int64_t index);

// What this rank's chunk of a sum still lacks after lossy reductions, because it waits in the residuals of this rail's
// ranks and in the own residual of results. Zeros for a unit without residual. Collective over the rail.
std::vector<double> held_back(Communicator& communicator, const Tiers& tiers, const UnitKey& unit,
                              int64_t chunk_elements);

// Elements that are wrong of a codec without residual: nobody knows where it erred, but how much it is expected to.
// errors: of one call, of each element of `rank`'s chunk. Wrong are all if their mean square is more than twice what
// CodecType::prior_error has for packets of the other nodes' pieces and, of an all-reduce, for that of the sum; else
// those beyond eight times its root. What rounding to `dtype` adds is allowed for.
int64_t count_unexpected(const std::vector<double>& errors, const NodeMap& map, int rank, double prior_error,
                         bool result_is_coded, DataType dtype);

// A number that differs where bytes differ, but for accidents; exact as a double.
double checksum(Device& device, ConstBuffer buffer);

}  // namespace isthmus::perf
