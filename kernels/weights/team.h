// The 16 lanes of the weights' coder as threads of a group: 16 neighbours with one lane each, or one thread with all
// lanes.
#pragma once

#include <cstdint>

#include "kernels/block/group_lanes.h"
#include "kernels/block/passes.h"
#include "kernels/weights/job.h"
#include "kernels/weights/layout.h"
#include "kernels/weights/moves.h"
#include "kernels/weights/tables.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Teams of a group work in step: all call these members equally often in the same order, even if they have no work.
template <typename Group>
class WeightTeam {
 public:
  static constexpr int kThreads = TeamsOf<Group>::kThreads;
  static constexpr int kOwn = kWeightLanes / kThreads;  // lanes of a thread

  explicit ISTHMUS_DEVICE WeightTeam(Group& group) : group_(&group) {}

  static ISTHMUS_DEVICE int64_t teams_of(const Group& group) { return group.size() / kThreads; }
  ISTHMUS_DEVICE int64_t number() const { return group_->thread() / kThreads; }
  ISTHMUS_DEVICE int thread() const { return static_cast<int>(group_->thread() % kThreads); }
  ISTHMUS_DEVICE int lane(int own) const { return thread() * kOwn + own; }

  // Whether it holds in any lane of this team, or possibly of other teams.
  ISTHMUS_DEVICE bool any(bool of_thread) const {
    if constexpr (kOwn == 1) {
      return group_->any_in_step(of_thread);
    } else {
      return of_thread;
    }
  }
  // Bit i is that of lane i.
  ISTHMUS_DEVICE uint32_t vote(const bool (&of_own)[kOwn]) const {
    if constexpr (kOwn == 1) {
      return group_->ballot_in_step(of_own[0]);
    } else {
      uint32_t votes = 0;
      for (int own = 0; own < kOwn; ++own) {
        votes |= of_own[own] ? 1U << own : 0U;
      }
      return votes;
    }
  }
  ISTHMUS_DEVICE WeightMoves add_up(const WeightMoves (&of_own)[kOwn]) const {
    WeightMoves moves;
    ISTHMUS_DO_NOT_UNROLL
    for (int lane = 0; lane < kWeightLanes; ++lane) {
      if constexpr (kOwn == 1) {
        moves.add({group_->from_neighbour(of_own[0].sum, lane), group_->from_neighbour(of_own[0].largest, lane)});
      } else {
        moves.add(of_own[lane]);
      }
    }
    return moves;
  }

 private:
  Group* group_;
};

// The laws inside of a pass, because a device cannot read host memory and can read what a pass holds.
struct WeightFrequencies {
  uint16_t of_token[kWeightLaws * kWeightTokens];
};
inline WeightFrequencies weight_frequencies() {
  WeightFrequencies frequencies;
  for (int law = 0; law < kWeightLaws; ++law) {
    for (int token = 0; token < kWeightTokens; ++token) {
      frequencies.of_token[law * kWeightTokens + token] = kWeightFrequencies[law][token];
    }
  }
  return frequencies;
}

// Shared-memory tables: for a law and token what WeightTables::encode has, and for a law and slot the token.
struct WeightEncodeTable {
  uint32_t of_token[kWeightLaws * kWeightTokens];
};
struct WeightDecodeTable {
  WeightEncodeTable tokens;  // frequencies and first slots
  uint8_t of_slot[kWeightLaws * kWeightSlots];
};

// All threads of a group call it. No barrier follows.
template <typename Group>
ISTHMUS_DEVICE void fill_table(const Group& group, const WeightFrequencies& frequencies, WeightEncodeTable& table) {
  for (int64_t i = group.thread(); i < kWeightLaws * kWeightTokens; i += group.size()) {
    const int64_t law = i / kWeightTokens * kWeightTokens;
    uint32_t first = 0;
    for (int64_t before = law; before < i; ++before) {
      first += frequencies.of_token[before];
    }
    const uint32_t frequency = frequencies.of_token[i];
    const bool is_escape = frequency == 0 || i == law + kWeightEscape;
    const uint32_t escape = 1U | (kWeightSlots - 1) << kWeightFirstSlotShift | kWeightIsEscape;
    table.of_token[i] = is_escape ? escape : frequency | first << kWeightFirstSlotShift;
  }
}

// A team writes the slots of a token.
template <typename Group>
ISTHMUS_DEVICE void fill_table(Group& group, const WeightFrequencies& frequencies, WeightDecodeTable& table) {
  fill_table(group, frequencies, table.tokens);
  group.sync();
  constexpr int64_t kThreads = WeightTeam<Group>::kThreads;
  for (int64_t i = group.thread() / kThreads; i < kWeightLaws * kWeightTokens; i += group.size() / kThreads) {
    const uint32_t first = (table.tokens.of_token[i] & ~kWeightIsEscape) >> kWeightFirstSlotShift;
    uint8_t* slots = table.of_slot + i / kWeightTokens * kWeightSlots + first;
    for (int64_t slot = group.thread() % kThreads; slot < frequencies.of_token[i]; slot += kThreads) {
      slots[slot] = static_cast<uint8_t>(i % kWeightTokens);
    }
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
