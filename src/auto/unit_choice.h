// Measurements of one unit whose codec a communicator chooses.
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
  // The time of a reduction that hides behind compute. Known once a part of a reduction was visible: one that hides as
  // a whole does not show how much longer it could be.
  double hidden_s = 0;
  bool hidden_is_known = false;
  // Up to the last decision.
  double given_squares = 0;
  double dropped_squares = 0;
  double least_seconds = kUnknownSeconds;  // of a reduction since then; not known on a GPU
  double seconds_over_model = 0;  // measured time of a reduction over the model's; 0: not known since links were probed
};

// Measurements of the group. Equal on all ranks.
struct GroupMeasurements {
  std::optional<LinkSpeeds> links;
  std::map<DataType, ByCandidate<CodecSpeed>> codecs;
};

}  // namespace isthmus
