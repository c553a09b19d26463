// Steps that several passes share. A pass is a function object that all threads of several groups run; it may be cut
// into any number of groups of any size. On CUDA it is a kernel (kernels/cuda/executor.cuh); tests emulate groups.
//
// kernels/<codec>/run_passes.h has run_passes(executor, job) for each job of a codec: its passes in their order. An
// Executor has
//
//   clear(void* memory, int64_t bytes)
//   run(pass, int64_t max_groups, int64_t shared_bytes = most_shared_bytes<Pass>())
//
// which take effect one after the other. It is a CUDA stream or, in tests, emulated. Which passes run, and on how many
// groups, depends on shapes and addresses alone, never on data: a captured sequence may be replayed.
//
// Where shapes and addresses also decide what a pass moves, the pass says so, over all its pieces or packets: Moved
// moved() const.
#pragma once

#include "kernels/block/group.h"
#include "kernels/block/job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Neighbours in memory. They are loaded and stored at once, or 16 bytes at a time if they are more.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) SeveralOf {
  T value[kCount];
};

ISTHMUS_DEVICE bool is_aligned(const void* address, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

constexpr int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

ISTHMUS_DEVICE uint32_t count_bits(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __popc(word);
#else
  return __builtin_popcount(word);
#endif
}

// The number of the lowest set bit; there is one.
ISTHMUS_DEVICE int lowest_bit(uint64_t word) {
#ifdef __CUDA_ARCH__
  return __ffsll(static_cast<long long>(word)) - 1;
#else
  return __builtin_ctzll(word);
#endif
}

// Calls visit(i) for each set bit i of `word`, ascending, with `first` added.
template <typename Word, typename Number, typename Visit>
ISTHMUS_DEVICE void for_each_bit(Word word, Number first, const Visit& visit) {
  for (; word != 0; word &= word - 1) {
    visit(first + lowest_bit(word));
  }
}

// Spreads elements over the threads of all groups: one thread visits element i.
template <typename Group, typename Visit>
ISTHMUS_DEVICE void for_each_of_all(const Group& group, int64_t count, Visit visit) {
  for (int64_t i = group.group_number() * group.size() + group.thread(); i < count;
       i += group.num_groups() * group.size()) {
    visit(i);
  }
}

// Spreads elements over the threads of one group.
template <typename Group, typename Visit>
ISTHMUS_DEVICE void for_each_of_group(const Group& group, int64_t count, Visit visit) {
  for (int64_t i = group.thread(); i < count; i += group.size()) {
    visit(i);
  }
}

// Spreads work over groups: all threads of one group call visit(i).
template <typename Group, typename Visit>
ISTHMUS_DEVICE void for_each_by_group(const Group& group, int64_t count, Visit visit) {
  for (int64_t i = group.group_number(); i < count; i += group.num_groups()) {
    visit(i);
  }
}

// Some neighbouring groups of a pass, as if there were no others. Numbers have 32 bits, because registers are scarce.
template <typename Group>
class PartOfGroups : public Group {
 public:
  ISTHMUS_DEVICE PartOfGroups(const Group& group, int first, int num_groups)
      : Group(group), first_(first), num_groups_(num_groups) {}

  ISTHMUS_DEVICE int64_t group_number() const { return Group::group_number() - first_; }
  ISTHMUS_DEVICE int64_t num_groups() const { return num_groups_; }
  ISTHMUS_DEVICE bool is_last(uint32_t& arrived) { return Group::is_last_of(arrived, num_groups_); }

 private:
  int first_;
  int num_groups_;
};

// Runs an encoding's pass for each of its pieces. The pieces share the groups evenly; with fewer groups than pieces a
// group takes several pieces, one after another.
template <typename Pass>
struct OfEachPiece {
  static constexpr int kThreads = threads_of<Pass>();
  static constexpr int kResidentGroups = resident_groups<Pass>();
  static constexpr int64_t kMaxSharedBytes = most_shared_bytes<Pass>();

  Pass pass;

  Moved moved() const requires requires { pass.moved(); }
  { return {pass.job.num_pieces * pass.moved().read, pass.job.num_pieces * pass.moved().written}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const auto num_groups = static_cast<int>(group.num_groups());
    const auto num_pieces = static_cast<int>(pass.job.num_pieces);
    const int groups = num_groups < num_pieces ? 1 : num_groups / num_pieces;  // of each
    const int first_piece = static_cast<int>(group.group_number()) / groups;
    for (int piece = first_piece; piece < num_pieces; piece += num_groups / groups) {
      if (piece != first_piece) {
        group.sync();  // the group's memory is free again
      }
      Pass of_piece = pass;
      of_piece.job.go_to(piece);
      PartOfGroups<Group> part(group, first_piece * groups, groups);
      of_piece(part);
    }
  }
};

// max_groups: for one piece.
template <typename Executor, typename Pass>
void run_for_pieces(Executor& executor, const Pass& pass, int64_t max_groups,
                    int64_t shared_bytes = most_shared_bytes<Pass>()) {
  executor.run(OfEachPiece<Pass>{pass}, pass.job.num_pieces * max_groups, shared_bytes);
}

// Whether all pieces, packets or residuals of an encoding begin at multiples of `bytes`.
inline bool pieces_are_aligned(const EncodeJobBase& job, uintptr_t bytes) {
  return is_aligned(job.piece.data, bytes) &&
         (job.last_place() == 0 || job.steps.piece_bytes % static_cast<int64_t>(bytes) == 0);
}
inline bool packets_are_aligned(const EncodeJobBase& job, uintptr_t bytes) {
  return is_aligned(job.packet, bytes) &&
         (job.last_place() == 0 || job.steps.packet_bytes % static_cast<int64_t>(bytes) == 0);
}
inline bool residuals_are_aligned(const EncodeJobBase& job, uintptr_t bytes) {
  constexpr int64_t kElementBytes = sizeof(float);
  return is_aligned(job.residual, bytes) &&
         (job.num_pieces == 1 || job.steps.residual_elements * kElementBytes % static_cast<int64_t>(bytes) == 0);
}

template <typename Group, typename Word>
ISTHMUS_DEVICE void clear(const Group& group, Word* words, int64_t count) {
  for_each_of_group(group, count, [=](int64_t i) { words[i] = 0; });
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
