// Codec `sparse` on many groups: a group takes one block after the other; only the packet and the residual leave it.
#pragma once

#include "kernels/block/float_types.h"
#include "kernels/block/packet_passes.h"
#include "kernels/sparse/block.h"
#include "kernels/sparse/job.h"
#include "kernels/tagc/digits.h"
#include "kernels/values/shard_values.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Four neighbours belong to one thread: they are loaded and stored at once where addresses allow it.
inline constexpr int32_t kSparseItems = 4;
static_assert(kSparseQuarterElements % kSparseItems == 0);

// Writes all of a packet but its header: the threshold of each block is found digit by digit in shared memory.
// residual += piece, less what decoding will give; not in blocks in which a sum is NaN or Inf. Reads piece and residual
// once and writes the residual once.
template <typename Piece>
struct EncodeSparseBlocks {
  static constexpr int kThreads = kPassThreads;
  static constexpr int kResidentGroups = 3;
  struct Shared {
    float sums[kSparseBlockElements];
    uint32_t digits[kMaxDigitValues];
    DigitChoice choice;
    uint32_t largest;  // magnitude
    uint32_t counts[kSparseQuarters];
  };
  static constexpr int64_t kMaxSharedBytes = sizeof(Shared);

  SparseEncodeJob job;
  bool aligned;  // four elements of piece and residual may be loaded at once

  Moved moved() const {
    const int64_t residual_bytes = job.piece.num_elements * static_cast<int64_t>(sizeof(float));
    return {job.piece.bytes() + residual_bytes, job.packet_bytes + residual_bytes};
  }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() == 0) {
      begin(group);
    }
    uint64_t kept = 0;
    uint64_t non_finite = 0;
    for_each_by_group(group, job.shape.num_blocks, [&](int64_t block) {
      const bool flagged = encode(group, block);
      kept += flagged ? 0 : static_cast<uint64_t>(job.shape.keep_of(block));
      non_finite += flagged;
    });
    if (group.thread() == 0 && kept + non_finite > 0) {
      group.fetch_add(job.counts->chosen_elements, kept);
      group.fetch_add(job.counts->kept_elements, kept);
      group.fetch_add(job.counts->non_finite_blocks, non_finite);
    }
  }

 private:
  // One group: what later passes count in, and the packet's padding.
  template <typename Group>
  ISTHMUS_DEVICE void begin(const Group& group) const {
    if (group.thread() == 0) {
      begin_counting(job);
    }
    for_each_sparse_gap(job.shape, job.layout,
                        [&](int64_t from, int64_t to) { clear(group, job.packet + from, to - from); });
  }

  // visit(i, count) for runs of up to kSparseItems neighbours of a block. A run is of the same thread in every call.
  template <typename Group, typename Visit>
  static ISTHMUS_DEVICE void for_each_run(const Group& group, int32_t num_elements, Visit visit) {
    const auto step = static_cast<int32_t>(group.size()) * kSparseItems;
    for (int32_t i = static_cast<int32_t>(group.thread()) * kSparseItems; i < num_elements; i += step) {
      visit(i, num_elements - i < kSparseItems ? num_elements - i : kSparseItems);
    }
  }

  // Returns whether the block is flagged.
  template <typename Group>
  ISTHMUS_DEVICE bool encode(Group& group, int64_t number) const {
    auto& shared = group.template shared<Shared>();
    const int64_t first = number * kSparseBlockElements;
    const auto count = static_cast<int32_t>(job.shape.elements_of(number));
    const auto keep = static_cast<int32_t>(job.shape.keep_of(number));
    const SparseBlock<uint8_t> block(job.shape, job.layout, number, job.packet);
    if (group.thread() == 0) {
      shared.largest = 0;
      clear_counts(shared);
    }
    uint32_t largest = 0;
    for_each_run(group, count, [&](int32_t i, int32_t length) {
      load_sums(first + i, length, shared.sums + i);
      for (int32_t item = i; item < i + length; ++item) {
        const uint32_t bits = magnitude(shared.sums[item]);
        largest = bits > largest ? bits : largest;
      }
    });
    if (group.any(largest >= kInfinityBits)) {
      write_flagged(group, keep, block);
      return true;
    }
    if (job.shape.has_scales()) {
      group.fetch_max(shared.largest, largest);
    }
    const PartialThreshold threshold = find_threshold(group, count, keep, shared);
    with_value_type(job.shape.value_type,
                    [&](auto value) { write_kept(value, group, threshold, first, count, block, shared); });
    group.sync();
    if (group.thread() == 0) {
      for (int64_t quarter = 0; quarter < kSparseQuarters; ++quarter) {
        block.set_count(quarter, shared.counts[quarter]);
      }
    }
    return false;
  }

  static ISTHMUS_DEVICE void clear_counts(Shared& shared) {
    for (uint32_t& count : shared.counts) {
      count = 0;
    }
  }

  ISTHMUS_DEVICE void load_sums(int64_t element, int32_t length, float* sums) const {
    const auto* piece = static_cast<const Piece*>(job.piece.data) + element;
    if (aligned && length == kSparseItems) {
      const auto loaded = *reinterpret_cast<const SeveralOf<Piece, kSparseItems>*>(piece);
      SeveralOf<float, kSparseItems> stays = {};
      if (job.residual != nullptr) {
        stays = *reinterpret_cast<const SeveralOf<float, kSparseItems>*>(job.residual + element);
      }
      for (int32_t i = 0; i < kSparseItems; ++i) {
        sums[i] = job.residual != nullptr ? widen(loaded.value[i]) + stays.value[i] : widen(loaded.value[i]);
      }
      return;
    }
    for (int32_t i = 0; i < length; ++i) {
      sums[i] = job.residual != nullptr ? widen(piece[i]) + job.residual[element + i] : widen(piece[i]);
    }
  }

  // Which magnitude is the `keep`-th largest, and how many of those that equal it are kept.
  template <typename Group>
  static ISTHMUS_DEVICE PartialThreshold find_threshold(Group& group, int32_t count, int32_t keep, Shared& shared) {
    PartialThreshold threshold = {0, static_cast<uint32_t>(keep), 1};
    for (int digit = 0; digit < kNumDigits; ++digit) {
      clear(group, shared.digits, digit_values(digit));
      group.sync();
      for_each_run(group, count, [&](int32_t first, int32_t length) {
        for (int32_t i = first; i < first + length; ++i) {
          const uint32_t bits = magnitude(shared.sums[i]);
          if (begins_alike(bits, threshold, digit)) {
            group.fetch_add(shared.digits[digit_of(bits, digit)], 1U);
          }
        }
      });
      group.sync();
      threshold = add_digit(group, threshold, digit, shared.digits, shared.choice);
    }
    return threshold;
  }

  // Writes offsets and values of kept elements, counts them, and leaves the rest in the residual.
  template <typename Value, typename Group>
  ISTHMUS_DEVICE void write_kept(Value /*value*/, Group& group, const PartialThreshold& threshold, int64_t first,
                                 int32_t count, const SparseBlock<uint8_t>& block, Shared& shared) const {
    const uint16_t scale_bits = Value::scale(shared.largest);
    const float scale = widen_bfloat16(scale_bits);
    if (job.shape.has_scales() && group.thread() == 0) {
      *reinterpret_cast<uint16_t*>(block.scale) = scale_bits;
    }
    auto* wire = reinterpret_cast<typename Value::Wire*>(block.values);
    uint32_t above_before = 0;  // in all runs before this turn's
    uint32_t equal_before = 0;
    const auto step = static_cast<int32_t>(group.size()) * kSparseItems;
    for (int32_t turn = 0; turn < count; turn += step) {
      const int32_t begin = turn + static_cast<int32_t>(group.thread()) * kSparseItems;
      const int32_t end = begin + kSparseItems < count ? begin + kSparseItems : count;
      uint32_t above = 0;
      uint32_t equal = 0;
      for (int32_t i = begin; i < end; ++i) {
        above += magnitude(shared.sums[i]) > threshold.prefix;
        equal += magnitude(shared.sums[i]) == threshold.prefix;
      }
      uint32_t total = 0;  // both counts at once: neither has more than 11 bits
      const uint32_t before = group.exclusive_sum(above | equal << 16, total);
      uint32_t next_above = above_before + (before & 0xffff);
      uint32_t next_equal = equal_before + (before >> 16);
      uint32_t kept = 0;
      for (int32_t i = begin; i < end; ++i) {
        const float sum = shared.sums[i];
        const bool is_above = magnitude(sum) > threshold.prefix;
        const bool is_equal = magnitude(sum) == threshold.prefix;
        if (is_above || (is_equal && next_equal < threshold.wanted)) {
          const uint32_t ties = next_equal < threshold.wanted ? next_equal : threshold.wanted;
          const typename Value::Wire sent = Value::encode(sum, scale);
          block.offsets[next_above + ties] = static_cast<uint8_t>(i);
          wire[next_above + ties] = sent;
          shared.sums[i] = sum - Value::decode(sent, scale);
          ++kept;
        }
        next_above += is_above;
        next_equal += is_equal;
      }
      if (kept > 0) {
        group.fetch_add(shared.counts[begin / kSparseQuarterElements], kept);
      }
      store_residual(first + begin, end - begin, shared.sums + begin);
      above_before += total & 0xffff;
      equal_before += total >> 16;
    }
  }

  ISTHMUS_DEVICE void store_residual(int64_t element, int32_t length, const float* sums) const {
    if (job.residual == nullptr || length <= 0) {
      return;
    }
    if (aligned && length == kSparseItems) {
      SeveralOf<float, kSparseItems> stays;
      for (int32_t i = 0; i < kSparseItems; ++i) {
        stays.value[i] = sums[i];
      }
      *reinterpret_cast<SeveralOf<float, kSparseItems>*>(job.residual + element) = stays;
      return;
    }
    for (int32_t i = 0; i < length; ++i) {
      job.residual[element + i] = sums[i];
    }
  }

  template <typename Group>
  ISTHMUS_DEVICE void write_flagged(const Group& group, int64_t keep, const SparseBlock<uint8_t>& block) const {
    if (group.thread() == 0) {
      for (int64_t quarter = 0; quarter < kSparseQuarters; ++quarter) {
        block.set_count(quarter, kSparseFlaggedCount);
      }
    }
    clear(group, block.scale, job.shape.has_scales() ? 2 : 0);
    clear(group, block.offsets, keep);
    clear(group, block.values, keep * job.shape.value_bytes());
  }
};

// The values of all packets, in their order, added to the own piece and scaled, or each packet to its place; NaN where
// a block is flagged. A group takes a block of all packets, whose sums it has in shared memory. Blocks are checked on
// the way: even a forged packet writes nothing outside its block, so that values may be added before header and
// checksum are verified.
struct DecodeSparseBlocks {
  static constexpr int kThreads = 64;  // few values are kept of a block
  static constexpr int kResidentGroups = 16;
  static constexpr int64_t kMaxSharedBytes = kSparseBlockElements * sizeof(float);

  SparseDecodeJob job;

  Moved moved() const { return {job.bytes_of_packets() + job.own.bytes(), job.out.bytes()}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() == 0 && group.thread() == 0) {
      *job.state = DecodeState{};
    }
    if (job.fault->reported != 0) {  // by an earlier decoding
      return;
    }
    const int64_t blocks = job.shape.num_blocks;
    for_each_by_group(group, job.to_places ? job.num_packets * blocks : blocks, [&](int64_t turn) {
      const int64_t first = job.to_places ? turn / blocks : 0;
      const int64_t end = job.to_places ? first + 1 : job.num_packets;
      decode(group, turn % blocks, first, end);
    });
    for_each_by_group(group, job.num_packets, [&](int64_t i) { check_padding(group, job.place_of(i)); });
  }

 private:
  // One block of the packets from `first` to `end`.
  template <typename Group>
  ISTHMUS_DEVICE void decode(Group& group, int64_t number, int64_t first, int64_t end) const {
    Buffer out = job.out;
    if (job.to_places) {
      out.num_elements = job.shape.num_elements;
      out.data = static_cast<float*>(out.data) + first * job.shape.num_elements;
    }
    const int64_t count = job.shape.elements_of(number);
    const int64_t place = number * kSparseBlockElements;
    auto* sums = &group.template shared<float>();
    const auto run_of = [=](int64_t run) { return reinterpret_cast<SeveralOf<float, kSparseItems>*>(sums) + run; };
    const int64_t num_runs = divide_up(count, kSparseItems);
    for_each_of_group(group, num_runs, [&](int64_t run) {
      *run_of(run) = load_values<kSparseItems>(job.own, place + run * kSparseItems);
    });
    group.sync();
    for (int64_t i = first; i < end; ++i) {
      const int64_t packet = job.place_of(i);
      const SparseBlock<const uint8_t> block(job.shape, job.layout, number, job.packets + packet * job.packet_bytes);
      if (block.is_flagged()) {
        add_flagged(group, packet, job.shape.keep_of(number), count, block, sums);
      } else {
        with_value_type(job.shape.value_type, [&](auto value) {
          add_values(value, group, packet, job.shape.keep_of(number), count, block, sums);
        });
      }
      group.sync();  // other threads may have the same elements of the next packet, or of the result
    }
    for_each_of_group(group, num_runs, [&](int64_t run) {
      store_scaled_values<kSparseItems>(*run_of(run), job.scale, out, place + run * kSparseItems);
    });
    group.sync();  // before the next block
  }

  template <typename Value, typename Group>
  ISTHMUS_DEVICE void add_values(Value /*value*/, Group& group, int64_t packet, int64_t keep, int64_t count,
                                 const SparseBlock<const uint8_t>& block, float* sums) const {
    const uint32_t end0 = block.count(0);
    const uint32_t end1 = end0 + block.count(1);
    const uint32_t end2 = end1 + block.count(2);
    if (end2 + block.count(3) != keep) {
      fault(group, packet, FaultKind::kCounts);
      return;
    }
    const auto position = [&](int64_t i) {
      const auto next = static_cast<uint32_t>(i);
      return kSparseQuarterElements * ((next >= end0) + (next >= end1) + (next >= end2)) + block.offsets[i];
    };
    const float scale = job.shape.has_scales() ? widen_bfloat16(*reinterpret_cast<const uint16_t*>(block.scale)) : 0.0F;
    const auto* wire = reinterpret_cast<const typename Value::Wire*>(block.values);
    for_each_of_group(group, keep, [&](int64_t i) {
      const int64_t at = position(i);
      if (at >= count || (i > 0 && at <= position(i - 1))) {
        fault(group, packet, FaultKind::kOffsets);
      } else {
        sums[at] += Value::decode(wire[i], scale);
      }
    });
  }

  template <typename Group>
  ISTHMUS_DEVICE void add_flagged(Group& group, int64_t packet, int64_t keep, int64_t count,
                                  const SparseBlock<const uint8_t>& block, float* sums) const {
    for_each_of_group(group, count, [=](int64_t i) { sums[i] = float_of(kNanBits); });
    const bool holds_some = any_set(group, block.scale, job.shape.has_scales() ? 2 : 0) ||
                            any_set(group, block.offsets, keep) ||
                            any_set(group, block.values, keep * job.shape.value_bytes());
    if (holds_some) {
      fault(group, packet, FaultKind::kFlaggedValues);
    }
  }

  template <typename Group>
  ISTHMUS_DEVICE void check_padding(Group& group, int64_t packet) const {
    const uint8_t* bytes = job.packets + packet * job.packet_bytes;
    bool set = false;
    for_each_sparse_gap(job.shape, job.layout,
                        [&](int64_t from, int64_t to) { set |= any_set(group, bytes + from, to - from); });
    if (set) {
      fault(group, packet, FaultKind::kPadding);
    }
  }

  // Whether this thread finds a byte other than 0.
  template <typename Group>
  static ISTHMUS_DEVICE bool any_set(const Group& group, const uint8_t* bytes, int64_t count) {
    uint8_t set = 0;
    for_each_of_group(group, count, [&](int64_t i) { set |= bytes[i]; });
    return set != 0;
  }

  template <typename Group>
  ISTHMUS_DEVICE void fault(Group& group, int64_t packet, FaultKind kind) const {
    group.fetch_min(job.fault->code, DeviceFault::code_of(packet, kind));
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
