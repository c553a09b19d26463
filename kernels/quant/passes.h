// Codec `quant` on many groups: sixteen threads take a block, each a lane of its rows.
#pragma once

#include <type_traits>

#include "kernels/block/float_types.h"
#include "kernels/block/group_lanes.h"
#include "kernels/block/packet_passes.h"
#include "kernels/quant/block.h"
#include "kernels/quant/job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Small groups, since threads with many registers would leave registers unused with large ones.
inline constexpr int kQuantThreads = 128;

// How many groups of threads must fit on a multiprocessor, by the rows that a thread holds.
constexpr int resident_quant_groups(int group_rows) { return group_rows <= 8 ? 6 : group_rows <= 16 ? 4 : 3; }

// How many groups block i of a piece has; 0 past the last.
ISTHMUS_DEVICE int groups_of_block(const QuantShape& shape, int64_t block, int most) {
  const int64_t left = shape.num_groups - block * most;
  return static_cast<int>(left < 0 ? 0 : left < most ? left : most);
}

ISTHMUS_DEVICE bool is_finite_number(float value) { return (quant_bits_of(value) & kQuantInfinity) != kQuantInfinity; }

// A residual is finite. NaN of a piece keeps its bits but becomes quiet: a GPU's additions have one NaN only.
ISTHMUS_DEVICE float sum_or_nan(float value, float residual) {
  const uint32_t bits = quant_bits_of(value);
  const bool is_nan = (bits & ~kQuantSign) > kQuantInfinity;
  return is_nan ? quant_float_of(bits | kQuantNan) : value + residual;
}

// The rows of one block of a piece: what encode_block() loads and keeps.
template <typename Piece, bool kFeedback, typename Lanes>
struct QuantRows {
  static constexpr bool kWanted = kFeedback;

  const Lanes* lanes;
  const Piece* piece;
  float* residual;
  int num_rows;

  ISTHMUS_DEVICE typename Lanes::Float operator()(int row) const {
    const bool present = row < num_rows;
    const typename Lanes::Float values = load(piece + row * kQuantLanes, present);
    if constexpr (kFeedback) {
      return values + lanes->load(residual + row * kQuantLanes, present);
    } else {
      return values;
    }
  }

  // What the receiver lacks.
  ISTHMUS_DEVICE void operator()(int row, typename Lanes::Float decoded, bool keep) const {
    constexpr float kLargest = 0x1.fffffep127F;
    lanes->store(lanes->limited((*this)(row)-decoded, -kLargest, kLargest), residual + row * kQuantLanes, keep);
  }

 private:
  ISTHMUS_DEVICE typename Lanes::Float load(const Piece* row, bool present) const {
    if constexpr (std::is_same_v<Piece, float>) {
      return lanes->load(row, present);
    } else {
      return lanes->floats(lanes->each([=](int lane) { return present ? quant_bits_of(widen(row[lane])) : 0U; }));
    }
  }
};

// All of a packet but its header. Group 0 also writes the tail, and zeros between the sections.
template <typename Piece, int kGroupRows, bool kRotate, bool kFeedback>
struct QuantizeBlocks {
  static constexpr int kThreads = kQuantThreads;
  static constexpr int kResidentGroups = resident_quant_groups(kGroupRows);
  static constexpr int64_t kMaxSharedBytes = 0;

  QuantEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const uint64_t seed = quant_seed(job.context->unit_hash, job.context->step, job.segment, job.sender);
    const Quantizer quantizer(job.settings);
    for_each_in_step(group, job.shape.num_blocks,
                     [&](const auto& lanes, int64_t block) { encode(group, lanes, quantizer, seed, block); });
    if (group.group_number() == 0) {
      write_padding(group);
      write_tail(group);
      if (group.thread() == 0) {
        *job.arrived = 0;
        group.fetch_add(job.counts->chosen_elements, static_cast<uint64_t>(job.shape.num_elements));
        group.fetch_add(job.counts->kept_elements, static_cast<uint64_t>(job.shape.num_elements));
      }
    }
  }

 private:
  ISTHMUS_DEVICE const Piece* piece() const { return static_cast<const Piece*>(job.piece.data); }

  template <typename Group, typename Lanes>
  ISTHMUS_DEVICE void encode(Group& group, const Lanes& lanes, const Quantizer& quantizer, uint64_t seed,
                             int64_t block) const {
    constexpr int kGroups = kQuantRows / kGroupRows;
    const int num_groups = groups_of_block(job.shape, block, kGroups);
    const int64_t first = block * kQuantBlockElements;
    const QuantRows<Piece, kFeedback, Lanes> rows = {
        &lanes, piece() + first, kFeedback ? job.residual + first : nullptr, num_groups * kGroupRows};
    uint8_t* scales = job.packet + job.layout.scales + block * kGroups * scale_bytes(job.settings.scale_type);
    auto* words = reinterpret_cast<uint32_t*>(job.packet + job.layout.codes) + block * kQuantLanes * job.settings.bits;
    const int non_finite_groups =
        encode_block<kGroupRows, kRotate>(lanes, quantizer, seed, block, num_groups, rows, rows, scales, words);
    if (non_finite_groups > 0 && lanes.writes()) {
      group.fetch_add(job.counts->non_finite_blocks, static_cast<uint64_t>(non_finite_groups));
    }
  }

  template <typename Group>
  ISTHMUS_DEVICE void write_padding(Group& group) const {
    const int64_t scales_end = job.layout.scales + job.shape.num_groups * scale_bytes(job.settings.scale_type);
    clear(group, job.packet + 8 * kHeaderWords, job.layout.scales - 8 * kHeaderWords);
    clear(group, job.packet + scales_end, job.layout.codes - scales_end);
  }

  // Elements that fill no group are sent as they are.
  template <typename Group>
  ISTHMUS_DEVICE void write_tail(Group& group) const {
    const int64_t first = job.shape.num_elements - job.shape.tail_elements;
    auto* tail = reinterpret_cast<float*>(job.packet + job.layout.tail);
    bool non_finite = false;
    for_each_of_group(group, (job.layout.end - job.layout.tail) / 4, [&](int64_t i) {
      if (i >= job.shape.tail_elements) {
        tail[i] = 0;
        return;
      }
      const float value = widen(piece()[first + i]);
      tail[i] = kFeedback ? sum_or_nan(value, job.residual[first + i]) : value;
      if (!is_finite_number(tail[i])) {
        non_finite = true;
      } else if (kFeedback) {
        job.residual[first + i] = 0;
      }
    });
    if (group.any(non_finite) && group.thread() == 0) {
      group.fetch_add(job.counts->non_finite_blocks, uint64_t{1});
    }
  }
};

// The values of all packets, added or put in their place. Nothing after a fault.
template <int kGroupRows, bool kRotate>
struct DequantizeBlocks {
  static constexpr int kThreads = kQuantThreads;
  static constexpr int kResidentGroups = resident_quant_groups(kGroupRows);
  static constexpr int64_t kMaxSharedBytes = 0;

  QuantDecodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() == 0 && group.thread() == 0) {
      *job.state = DecodeState{};
    }
    if (job.fault->reported != 0) {
      return;
    }
    const Quantizer quantizer(job.settings);
    if (job.to_places) {
      for_each_in_step(group, job.num_packets * job.shape.num_blocks, [&](const auto& lanes, int64_t i) {
        decode<true>(lanes, quantizer, i / job.shape.num_blocks, i % job.shape.num_blocks);
      });
    } else {
      for_each_in_step(group, job.shape.num_blocks, [&](const auto& lanes, int64_t block) {
        for (int64_t packet = 0; packet < job.num_packets; ++packet) {
          decode<false>(lanes, quantizer, packet, block);
        }
      });
    }
    if (group.group_number() == 0) {
      decode_tails(group);
    }
  }

 private:
  ISTHMUS_DEVICE float* place_of(int64_t packet) const {
    return static_cast<float*>(job.out.data) + (job.to_places ? packet * job.shape.num_elements : 0);
  }

  template <bool kReplace, typename Lanes>
  ISTHMUS_DEVICE void decode(const Lanes& lanes, const Quantizer& quantizer, int64_t packet, int64_t block) const {
    constexpr int kGroups = kQuantRows / kGroupRows;
    const uint64_t seed =
        quant_seed(job.context->unit_hash, job.context->step, job.segment, job.senders.of_packet(packet));
    const int num_groups = packet < job.num_packets ? groups_of_block(job.shape, block, kGroups) : 0;
    const uint8_t* bytes = job.packets + packet * job.packet_bytes;
    const uint8_t* scales = bytes + job.layout.scales + block * kGroups * scale_bytes(job.settings.scale_type);
    const auto* words =
        reinterpret_cast<const uint32_t*>(bytes + job.layout.codes) + block * kQuantLanes * job.settings.bits;
    float* out = place_of(packet) + block * kQuantBlockElements;
    decode_block<kGroupRows, kRotate>(lanes, quantizer, seed, block, num_groups, scales, words,
                                      [&](int row, typename Lanes::Float value, bool present) {
                                        float* place = out + row * kQuantLanes;
                                        const typename Lanes::Float before =
                                            kReplace ? typename Lanes::Float{} : lanes.load(place, present);
                                        lanes.store(before + value, place, present);
                                      });
  }

  template <typename Group>
  ISTHMUS_DEVICE void decode_tails(Group& group) const {
    const int64_t first = job.shape.num_elements - job.shape.tail_elements;
    for_each_of_group(group, job.shape.tail_elements, [&](int64_t i) {
      for (int64_t packet = 0; packet < job.num_packets; ++packet) {
        const auto* tail = reinterpret_cast<const float*>(job.packets + packet * job.packet_bytes + job.layout.tail);
        float* place = place_of(packet) + first + i;
        *place = (job.to_places ? 0 : *place) + tail[i];
      }
    });
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
