// What passes over weights share: types of weights, and the 16 lanes of the coder as threads of a group, 16 neighbours
// with one lane each, or one thread with all lanes.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/block/group_lanes.h"
#include "kernels/block/hashes.h"
#include "kernels/block/passes.h"
#include "kernels/weights/job.h"
#include "kernels/weights/layout.h"
#include "kernels/weights/moves.h"
#include "kernels/weights/tables.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Threads of a group that codes: 8 teams. There are few blocks, and each takes long.
inline constexpr int kWeightThreads = 128;

// Replaces a WeightFormat for types that are not coded.
struct UncodedWeights {
  using Bits = uint8_t;
};
template <typename Format>
inline constexpr bool kIsCoded = true;
template <>
inline constexpr bool kIsCoded<UncodedWeights> = false;

// Calls visit(Format{}) with the format of a type.
template <typename Visit>
void with_weight_format(DataType dtype, Visit visit) {
  switch (dtype) {
    case DataType::kBFloat16:
      return visit(BFloat16Weights{});
    case DataType::kFloat16:
      return visit(Float16Weights{});
    case DataType::kFloat32:
      return visit(Float32Weights{});
    case DataType::kFloat64:
    case DataType::kByte:
      return visit(UncodedWeights{});
  }
}

// The elements of some steps that the lanes of one thread take.
template <typename Bits, int kSteps, int kOwn>
struct WeightSteps {
  Bits bits[kSteps][kOwn];

  // Loads from step `first` on. Elements past `count` are +0.
  template <typename Team>
  ISTHMUS_DEVICE void load(const Team& team, const Bits* group, int first, int count) {
    ISTHMUS_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      for (int own = 0; own < kOwn; ++own) {
        const int index = (first + step) * kWeightLanes + team.lane(own);
        bits[step][own] = index < count ? group[index] : Bits{0};
      }
    }
  }
};

// A checksum that is never 0, which stands for none.
ISTHMUS_DEVICE uint64_t weight_checksum(uint64_t sum) { return sum == 0 ? 1 : sum; }

// The checksum that WeightHeader::seal() sets.
ISTHMUS_DEVICE uint32_t checksum_of_weight_header(WeightHeaderWords header) {
  header.word[kWeightGather] &= (uint64_t{1} << kWeightUpperHalf) - 1;
  uint64_t sum = 0;
  for (int64_t i = 0; i < kWeightHeaderWords; ++i) {
    sum += checksum_of_word(header.word[i], i);
  }
  return static_cast<uint32_t>(mix(weight_checksum(sum)));
}

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

// WeightTables::encode inside of a pass, because a device cannot read host memory and can read what a pass holds. A
// group copies it to its shared memory.
struct WeightEncodeTable {
  uint32_t of_token[kWeightLaws * kWeightTokens];
};
inline WeightEncodeTable weight_encode_table() {
  WeightEncodeTable table;
  std::memcpy(&table, kWeightTables.encode.data(), sizeof(table));
  return table;
}
// Also the token of each slot of a law.
struct WeightDecodeTable {
  WeightEncodeTable tokens;
  uint8_t of_slot[kWeightLaws * kWeightSlots];
};

// All threads of a group call it. No barrier follows.
template <typename Group>
ISTHMUS_DEVICE void fill_table(const Group& group, const WeightEncodeTable& given, WeightEncodeTable& table) {
  for_each_of_group(group, kWeightLaws * kWeightTokens, [&](int64_t i) { table.of_token[i] = given.of_token[i]; });
}

// A team writes the slots of a token.
template <typename Group>
ISTHMUS_DEVICE void fill_table(const Group& group, const WeightEncodeTable& given, WeightDecodeTable& table) {
  fill_table(group, given, table.tokens);
  constexpr int64_t kThreads = WeightTeam<Group>::kThreads;
  for (int64_t i = group.thread() / kThreads; i < kWeightLaws * kWeightTokens; i += group.size() / kThreads) {
    const uint32_t entry = given.of_token[i];
    if (i % kWeightTokens == kWeightEscape || (entry & kWeightIsEscape) == 0) {
      uint8_t* slots = table.of_slot + i / kWeightTokens * kWeightSlots + weight_first_slot(entry);
      for (int64_t slot = group.thread() % kThreads; slot < weight_frequency(entry); slot += kThreads) {
        slots[slot] = static_cast<uint8_t>(i % kWeightTokens);
      }
    }
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
