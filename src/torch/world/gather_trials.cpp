#include "torch/world/gather_trials.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>

#include "auto/chooser.h"
#include "torch/backend/without_gil.h"

namespace isthmus::torch_backend {
namespace {

// Of each way, after one that makes NCCL's communicators. The shortest counts: disturbances lengthen a gather.
constexpr int kTimedGathers = 3;

}  // namespace

bool GatherTrial::world_is_faster() const { return world_s < (1 - kWorthChanging) * tiers_s; }

bool GatherTrials::world_is_faster(Side& side, const at::Tensor& output, const std::function<WorkPtr()>& in_tiers,
                                   const std::function<WorkPtr()>& by_world) {
  const auto max_bytes = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(output.nbytes())));
  {
    const std::lock_guard lock(mutex_);
    const auto found = trials_.find(max_bytes);
    if (found != trials_.end()) {
      ++found->second.calls;
      return found->second.world_is_faster();
    }
  }
  if (calls_.is_coalescing() || !side.tries_gathers()) {
    return false;
  }
  const WithoutGil without_gil;
  GatherTrial trial = try_both(side, max_bytes, in_tiers, by_world);
  trial.calls = 1;
  const std::lock_guard lock(mutex_);
  trials_.insert_or_assign(max_bytes, trial);
  return trial.world_is_faster();
}

// The ways take turns, so that what else the links carry slows down both.
GatherTrial GatherTrials::try_both(Side& side, int64_t max_bytes, const std::function<WorkPtr()>& in_tiers,
                                   const std::function<WorkPtr()>& by_world) {
  const auto seconds_of = [&side](const std::function<WorkPtr()>& gather) {
    const auto start = std::chrono::steady_clock::now();
    if (const WorkPtr work = gather()) {  // NCCL's backend has none where the caller's stream runs the operation
      work->wait();
    }
    side.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  side.synchronize();  // with what was enqueued before
  seconds_of(in_tiers);
  seconds_of(by_world);
  std::vector<double> shortest(2, std::numeric_limits<double>::max());
  for (int i = 0; i < kTimedGathers; ++i) {
    shortest[0] = std::min(shortest[0], seconds_of(in_tiers));
    shortest[1] = std::min(shortest[1], seconds_of(by_world));
  }
  calls_.max_over_ranks(sides_.cpu(), shortest);  // all ranks must choose alike
  return {.max_bytes = max_bytes, .tiers_s = shortest[0], .world_s = shortest[1]};
}

std::vector<GatherTrial> GatherTrials::trials() const {
  const std::lock_guard lock(mutex_);
  std::vector<GatherTrial> trials;
  for (const auto& [max_bytes, trial] : trials_) {
    trials.push_back(trial);
  }
  return trials;
}

void GatherTrials::reset_stats() {
  const std::lock_guard lock(mutex_);
  for (auto& [max_bytes, trial] : trials_) {
    trial.calls = 0;
  }
}

}  // namespace isthmus::torch_backend
