// The threads of a group as lanes of a block algorithm (kernels/quant/block.h): sixteen neighbours work on a block, one
// lane each, in step with the other sixteens.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/block/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// One lane of sixteen; lanes16.h says what the members mean. The group's size is a multiple of sixteen.
template <typename Group>
class GroupLanes {
 public:
  using Float = float;
  using Word = uint32_t;

  explicit ISTHMUS_DEVICE GroupLanes(Group& group) : group_(&group), lane_(static_cast<int>(group.thread() % 16)) {}

  template <typename Function>
  ISTHMUS_DEVICE Word each(Function of_lane) const {
    return of_lane(lane_);
  }

  template <typename T>
  ISTHMUS_DEVICE T load(const T* row, bool present) const {
    return present ? row[lane_] : T{};
  }
  template <typename T>
  ISTHMUS_DEVICE void store(T value, T* row, bool present) const {
    if (present) {
      row[lane_] = value;
    }
  }

  static ISTHMUS_DEVICE Word bits(Float a) { return std::bit_cast<Word>(a); }
  static ISTHMUS_DEVICE Float floats(Word a) { return std::bit_cast<Float>(a); }
  static ISTHMUS_DEVICE Float limited(Float a, float least, float most) {
    const float above = a > least ? a : least;
    return above < most ? above : most;
  }
  static ISTHMUS_DEVICE Word max(Word a, Word b) { return a > b ? a : b; }

  template <int kDistance>
  ISTHMUS_DEVICE Float exchange(Float a) const {
    return group_->template exchange<kDistance>(a);
  }
  template <typename Visit>
  ISTHMUS_DEVICE void for_lanes(Visit visit) const {
    visit(lane_);
  }
  static ISTHMUS_DEVICE uint32_t of(Word a, int /*lane*/) { return a; }
  static ISTHMUS_DEVICE float common(Float a) { return a; }
  static ISTHMUS_DEVICE uint32_t common(Word a) { return a; }
  ISTHMUS_DEVICE bool any(bool condition) const { return group_->any_in_step(condition); }
  ISTHMUS_DEVICE bool writes() const { return lane_ == 0; }

 private:
  Group* group_;
  int lane_;
};

// How the threads of a group share blocks: kThreads of them work on one. Groups of one thread have their own lanes, and
// a specialisation.
template <typename Group>
struct TeamsOf {
  static constexpr int64_t kThreads = 16;
  static ISTHMUS_DEVICE GroupLanes<Group> lanes(Group& group) { return GroupLanes<Group>(group); }
};

// A part of the groups has the teams of all.
template <typename Group>
struct TeamsOf<PartOfGroups<Group>> : TeamsOf<Group> {};

// Calls visit(lanes, i) for each i < count, by one team. It also calls it for some i beyond `count`, so that all teams
// of a group make equally many calls.
template <typename Group, typename Visit>
ISTHMUS_DEVICE void for_each_in_step(Group& group, int64_t count, const Visit& visit) {
  const auto lanes = TeamsOf<Group>::lanes(group);
  const int64_t num_teams = group.size() / TeamsOf<Group>::kThreads;
  const int64_t team = group.thread() / TeamsOf<Group>::kThreads;
  for (int64_t first = group.group_number() * num_teams; first < count; first += group.num_groups() * num_teams) {
    visit(lanes, first + team);
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
