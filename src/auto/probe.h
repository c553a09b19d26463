// Measures the speeds of links and codecs for auto, in a fraction of a second. See docs/auto.md.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "auto/agreement.h"
#include "auto/chooser.h"
#include "isthmus/communicator.h"
#include "isthmus/device.h"
#include "isthmus/options.h"

namespace isthmus {

// The limits of a probe.
struct ProbeLimits {
  int64_t smallest_bytes = 4096;  // that one rank sends in one operation; doubled until
  int64_t largest_bytes = 4 << 20;
  double longest_s = .015;          // of one operation
  int repeats = 5;                  // of the smallest and the last size, and of each codec
  int64_t sample_elements = 65536;  // that codecs are measured on
};

// Seconds from any fixed moment, on this rank.
using ProbeClock = std::function<double()>;
ProbeClock steady_clock();

// values[i] = the largest of all ranks' values[i]. Collective; returns on no rank before all ranks have called it.
using MaxOverRanks = std::function<void(std::vector<double>& values)>;

// latency + bytes / speed through the smallest and the largest operation: small ones are latency, large ones bandwidth.
// operation(bytes) runs one of about that size, and returns when it is done. Collective; equal on all ranks: the
// slowest rank's times count.
Speed probe_speed(const std::function<void(int64_t bytes)>& operation, const MaxOverRanks& max_over_ranks,
                  const ProbeClock& clock, const ProbeLimits& limits);

// Speeds of both tiers, the world backend's apart; nothing is sent over a tier whose speed is given in `options`.
// dtype: of the summands. Collective, equal on all ranks. Called by the thread that uses the tiers, while nothing else
// runs on them. Throws TransportError if a tier fails.
LinkSpeeds probe_tiers(const Tiers& tiers, Device& device, DataType dtype, const Options& options,
                       const ProbeClock& clock = steady_clock(), const ProbeLimits& limits = {});

// Speeds of codec none, and of those that auto may choose within its error budget by their expected errors, for pieces
// that are summed from `dtype`. Collective: all ranks are as busy as in a reduction. Equal on all ranks.
ByCandidate<CodecSpeed> probe_codecs(Device& device, DataType dtype, int ranks_per_node, const Options& options,
                                     const MaxOverRanks& max_over_ranks, const ProbeClock& clock = steady_clock(),
                                     const ProbeLimits& limits = {});

}  // namespace isthmus
