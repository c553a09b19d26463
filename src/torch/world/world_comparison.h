// Codec auto: which collectives are left to the world backend because it is faster. See docs/auto.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>

#include "auto/chooser.h"
#include "torch/backend/call_counters.h"
#include "torch/backend/group.h"
#include "torch/sides/side.h"
#include "torch/units/gradient_recogniser.h"
#include "torch/world/world_calls.h"

namespace isthmus::torch_backend {

// Why collectives go to the world backend with codec=auto.
inline constexpr const char* kWorldFaster = "the world backend is faster";
inline constexpr const char* kWorldGathersFaster = "the world backend gathers faster";

// Called by the threads that make the group's calls, in program order: the first calls measure, which is collective and
// blocks. `mutex_` is not held meanwhile.
class WorldComparison {
 public:
  WorldComparison(const Group& group, CallCounters& counters, WorldCalls& calls)
      : group_(group), counters_(counters), calls_(calls) {}

  // Whether a reduction, or a gather, is left to the side's world backend, which is then counted. input, output: on
  // that side.
  bool world_reduces_faster(Side& side, const Gradient& gradient, const at::Tensor& input);
  bool world_gathers_faster(Side& side, const at::Tensor& output);

  // The units that are left to the world backend, by UnitKey::hash().
  std::map<uint64_t, UnitStats> units() const;
  void reset_stats();  // not the measurements

 private:
  const Measurements* measurements(Side& side, const at::Tensor& like);
  Measurements measure_tiers(Side& side, DataType dtype);
  void measure_world(Side& side, DataType dtype, LinkSpeeds& links);

  const Group& group_;
  CallCounters& counters_;
  WorldCalls& calls_;

  mutable std::mutex mutex_;                       // guards what follows
  std::map<DataType, Measurements> measurements_;  // never erased: pointers to them stay valid
  std::map<uint64_t, UnitStats> units_;
};

}  // namespace isthmus::torch_backend
