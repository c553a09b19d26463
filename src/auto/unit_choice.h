// What a communicator knows of one unit whose codec it chooses.
#pragma once

#include <limits>
#include <map>
#include <optional>

#include "auto/chooser.h"

namespace isthmus {

struct UnitChoice {
  static constexpr double kUnknownSeconds = std::numeric_limits<double>::infinity();

  Choice choice;
  ByCandidate<std::optional<double>> errors;  // measured
  // Of a reduction: what hides behind compute. Known once some of one was seen: of what hides altogether, who knows how
  // much more would.
  double hidden_s = 0;
  bool hidden_is_known = false;
  // Up to the last decision.
  double given_squares = 0;
  double dropped_squares = 0;
  double least_seconds = kUnknownSeconds;  // of a reduction since then; on a GPU nobody knows
  double seconds_over_model =
      0;  // what a reduction took over what the model says; 0: not known since links were probed
};

// What it knows of its group. Equal on all ranks.
struct GroupMeasurements {
  std::optional<LinkSpeeds> links;
  std::map<DataType, ByCandidate<CodecSpeed>> codecs;
};

}  // namespace isthmus
