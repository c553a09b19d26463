// Codec `quant` on many groups: sixteen threads take a block, each one lane of its rows.
#pragma once

#include <type_traits>

#include "kernels/block/float_types.h"
#include "kernels/block/group_lanes.h"
#include "kernels/block/packet_passes.h"
#include "kernels/elementwise/shard_values.h"
#include "kernels/quant/block.h"
#include "kernels/quant/job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Small groups, since threads with many registers would leave registers unused with large ones.
inline constexpr int kQuantThreads = 128;

// How many groups block i of a piece has; 0 past the last.
ISTHMUS_DEVICE int groups_of_block(const QuantShape& shape, int64_t block) {
  const int64_t left = shape.num_groups - block * kQuantGroups;
  return static_cast<int>(left < 0 ? 0 : left < kQuantGroups ? left : kQuantGroups);
}

// The scales of one block in one of the packets that have this layout.
template <typename Byte>
ISTHMUS_DEVICE auto scales_of_block(Byte* packet, const QuantLayout& layout, int64_t block) {
  using Memory = std::conditional_t<std::is_const_v<Byte>, const uint16_t, uint16_t>;
  return reinterpret_cast<Memory*>(packet + layout.scales) + block * kQuantGroups;
}

// Adds a finite residual. A NaN of the piece keeps its bits but becomes quiet, because a GPU's additions know only one
// NaN.
ISTHMUS_DEVICE float sum_or_nan(float value, float residual) {
  const bool is_nan = magnitude(value) > kInfinityBits;
  return is_nan ? float_of(bits_of(value) | kNanBits) : value + residual;
}

// The packed codes of one block in a packet (QuantWords), whose checksum is taken on the way: each word of the checksum
// is that of two neighbouring lanes.
template <typename Lanes, typename Memory>
class SummedWords {
 public:
  // place: of the block's first word in the checksum.
  ISTHMUS_DEVICE SummedWords(const Lanes& lanes, Memory* memory, int num_words, int64_t place)
      : lanes_(lanes), memory_(memory), num_words_(num_words), place_(place) {}

  ISTHMUS_DEVICE void store(int word, typename Lanes::Word packed, bool present) {
    lanes_.store(packed, memory_ + word * kQuantLanes, present);
    add(word, packed, present);
  }
  ISTHMUS_DEVICE typename Lanes::Word load(int word, bool present) {
    const typename Lanes::Word packed = lanes_.load(memory_ + word * kQuantLanes, present);
    add(word, packed, present);
    return packed;
  }

  // This thread's part of the checksum of all words.
  ISTHMUS_DEVICE uint64_t checksum() const { return checksum_; }

 private:
  static constexpr int64_t kPlacesOfRow = kQuantLanes / 2;

  // Every other call hands words over: an even lane then has both halves of one row's, and an odd lane of the next
  // row's.
  ISTHMUS_DEVICE void add(int word, typename Lanes::Word packed, bool present) {
    if (word % 2 == 0 && word + 1 < num_words_) {
      before_ = packed;
      return;
    }
    const bool is_single = word % 2 == 0;
    const typename Lanes::Word first = is_single ? packed : before_;
    const typename Lanes::Word given =
        lanes_.each([&](int lane) { return lanes_.of(lane % 2 == 0 ? packed : first, lane); });
    const typename Lanes::Word taken = lanes_.bits(lanes_.template exchange<1>(lanes_.floats(given)));
    const int64_t row = place_ + kPlacesOfRow * (is_single ? word : word - 1);
    lanes_.for_lanes([&](int lane) {
      const bool is_even = lane % 2 == 0;
      if (present && (is_even || !is_single)) {
        const uint32_t low = is_even ? lanes_.of(first, lane) : lanes_.of(taken, lane);
        const uint32_t high = is_even ? lanes_.of(taken, lane) : lanes_.of(packed, lane);
        checksum_ += checksum_of_word(uint64_t{high} << 32 | low, row + (is_even ? 0 : kPlacesOfRow) + lane / 2);
      }
    });
  }

  const Lanes& lanes_;
  Memory* memory_;
  int num_words_;
  int64_t place_;
  typename Lanes::Word before_ = {};
  uint64_t checksum_ = 0;
};

// A block's codes in one of the packets that have this layout.
template <typename Lanes, typename Byte>
ISTHMUS_DEVICE auto words_of_block(const Lanes& lanes, Byte* packet, const QuantLayout& layout, int bits,
                                   int64_t block) {
  using Memory = std::conditional_t<std::is_const_v<Byte>, const uint32_t, uint32_t>;
  const int64_t offset = layout.codes + block * kQuantLanes * bits * static_cast<int64_t>(sizeof(uint32_t));
  return SummedWords<Lanes, Memory>(lanes, reinterpret_cast<Memory*>(packet + offset), bits,
                                    offset / kChecksumWordBytes - kHeaderWords);
}

// The bytes of a packet's codes: threads add up their checksum while they write or read them.
inline SummedBytes summed_codes(const QuantLayout& layout) { return {layout.codes, layout.tail}; }

// Writes all of a packet but its header, and the codes' part of its checksum. Group 0 also writes the tail, and zeros
// between the sections.
template <typename Piece, bool kFeedback>
struct QuantizeBlocks {
  static constexpr int kThreads = kQuantThreads;
  // Without spilled registers; widening float16 takes more of them.
  static constexpr int kResidentGroups = kFeedback || std::is_same_v<Piece, Float16> ? 4 : 5;
  static constexpr int64_t kMaxSharedBytes = SumsOfPackets::bytes(kThreads, 1);

  QuantEncodeJob job;

  // With feedback, piece and residual are read twice, the second time from the cache.
  Moved moved() const {
    const int64_t residual_bytes = kFeedback ? job.shape.num_elements * static_cast<int64_t>(sizeof(float)) : 0;
    return {job.piece.bytes() + residual_bytes, job.packet_bytes + residual_bytes};
  }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const uint64_t seed = quant_seed(job.context->unit_hash, job.context->step, job.segment, job.sender);
    const Quantizer quantizer(job.bits);
    const SumsOfPackets checksum(group);
    checksum.clear(1);
    uint32_t level = 0;
    for_each_in_step(group, job.shape.num_blocks, [&](const auto& lanes, int64_t block) {
      checksum.add(0, encode(group, lanes, quantizer, seed, block, level));
    });
    if (kFeedback && job.magnitudes != nullptr && level > job.magnitudes->largest) {
      group.fetch_max(job.magnitudes->largest, level);
    }
    checksum.write_part_of(group, 0, job.parts, 0);
    if (group.group_number() == 0) {
      write_padding(group);
      write_tail(group);
      if (group.thread() == 0) {
        begin_counting(job);
        group.fetch_add(job.counts->chosen_elements, static_cast<uint64_t>(job.shape.num_elements));
        group.fetch_add(job.counts->kept_elements, static_cast<uint64_t>(job.shape.num_elements));
      }
    }
  }

 private:
  ISTHMUS_DEVICE const Piece* piece() const { return static_cast<const Piece*>(job.piece.data); }

  // Returns this thread's part of the codes' checksum.
  template <typename Group, typename Lanes>
  ISTHMUS_DEVICE uint64_t encode(Group& group, const Lanes& lanes, const Quantizer& quantizer, uint64_t seed,
                                 int64_t block, uint32_t& level) const {
    const int num_groups = groups_of_block(job.shape, block);
    const int64_t first = block * kQuantBlockElements;
    const QuantRows<Piece, kFeedback, Lanes> rows = {
        &lanes, piece() + first, kFeedback ? job.residual + first : nullptr, num_groups * kQuantGroupRows};
    auto words = words_of_block(lanes, job.packet, job.layout, job.bits, block);
    const int non_finite_groups = encode_block(lanes, quantizer, seed, block, num_groups, rows,
                                               scales_of_block(job.packet, job.layout, block), words, level);
    if (non_finite_groups > 0 && lanes.writes()) {
      group.fetch_add(job.counts->non_finite_blocks, static_cast<uint64_t>(non_finite_groups));
    }
    return words.checksum();
  }

  template <typename Group>
  ISTHMUS_DEVICE void write_padding(Group& group) const {
    const int64_t scales_end = job.layout.scales + job.shape.num_groups * static_cast<int64_t>(sizeof(uint16_t));
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
      if (!is_finite(tail[i])) {
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

// Puts the values of all packets in their places, or adds them to the own piece and scales the sum. It also takes the
// codes' part of their checksums.
struct DequantizeBlocks {
  static constexpr int kThreads = kQuantThreads;
  static constexpr int kResidentGroups = 4;  // the sums of a block take 32 registers
  static constexpr int64_t kMaxSharedBytes = SumsOfPackets::bytes(kThreads, kPacketsSummed);

  QuantDecodeJob job;
  bool with_checksums = takes_checksums(job);

  Moved moved() const { return {job.bytes_of_packets() + job.own.bytes(), job.out.bytes()}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    decode_with_checksums(group, job, with_checksums, [&](const SumsOfPackets& checksums) {
      const Quantizer quantizer(job.bits);
      const int64_t num_results = job.to_places ? job.num_packets : 1;
      for_each_in_step(group, num_results * job.shape.num_blocks, [&](const auto& lanes, int64_t i) {
        sum_block(lanes, quantizer, i / job.shape.num_blocks, i % job.shape.num_blocks, checksums);
      });
      if (group.group_number() == 0) {
        decode_tails(group);
      }
    });
  }

 private:
  // A block of the sum of all packets; with places, of one packet's place, if there is one.
  template <typename Lanes>
  ISTHMUS_DEVICE void sum_block(const Lanes& lanes, const Quantizer& quantizer, int64_t result, int64_t block,
                                const SumsOfPackets& checksums) const {
    const int64_t first_packet = job.to_places ? result : 0;
    const int64_t end_packet = job.to_places ? result + 1 : job.num_packets;
    const bool present = result < (job.to_places ? job.num_packets : 1);
    const int64_t first = result * job.shape.num_elements + block * kQuantBlockElements;
    const int num_rows = present ? groups_of_block(job.shape, block) * kQuantGroupRows : 0;
    typename Lanes::Float sums[kQuantRows];
    with_value_type(job.own.dtype, [&]<typename T>(T) {  // outside of the loop, which then has its loads in flight
      const T* own = static_cast<const T*>(job.own.data) + first;
      const int num_own = job.own.data != nullptr ? num_rows : 0;
      ISTHMUS_UNROLL
      for (int row = 0; row < kQuantRows; ++row) {
        sums[row] = lanes.floats(
            lanes.each([&](int lane) { return row < num_own ? bits_of(widen(own[row * kQuantLanes + lane])) : 0U; }));
      }
    });
    for (int64_t i = first_packet; i < end_packet; ++i) {
      const uint64_t sum = decode(lanes, quantizer, job.place_of(i), block, present,
                                  [&](int row, typename Lanes::Float value) { sums[row] = sums[row] + value; });
      if (with_checksums && present) {
        checksums.add(i, sum);
      }
    }
    with_value_type(job.out.dtype, [&]<typename T>(T) {
      T* out = static_cast<T*>(job.out.data) + first;
      ISTHMUS_UNROLL
      for (int row = 0; row < kQuantRows; ++row) {
        const typename Lanes::Word bits = lanes.bits(sums[row]);
        lanes.for_lanes([&](int lane) {
          if (row < num_rows) {
            out[row * kQuantLanes + lane] = scaled<T>(float_of(lanes.of(bits, lane)), job.scale);
          }
        });
      }
    });
  }

  // put(row, value) for each row of a block of one packet. Returns this thread's part of its codes' checksum.
  template <typename Lanes, typename Put>
  ISTHMUS_DEVICE uint64_t decode(const Lanes& lanes, const Quantizer& quantizer, int64_t packet, int64_t block,
                                 bool present, const Put& put) const {
    const uint64_t seed =
        quant_seed(job.context->unit_hash, job.context->step, job.segment, job.senders.of_packet(packet));
    const int num_groups = present ? groups_of_block(job.shape, block) : 0;
    const uint8_t* bytes = job.packets + packet * job.packet_bytes;
    auto words = words_of_block(lanes, bytes, job.layout, job.bits, block);
    decode_block(lanes, quantizer, seed, block, num_groups, scales_of_block(bytes, job.layout, block), words,
                 [&](int row, typename Lanes::Float value, bool) { put(row, value); });
    return words.checksum();
  }

  template <typename Group>
  ISTHMUS_DEVICE void decode_tails(Group& group) const {
    const int64_t first = job.shape.num_elements - job.shape.tail_elements;
    for_each_of_group(group, job.shape.tail_elements, [&](int64_t i) {
      float sum = load_values<1>(job.own, first + i).value[0];
      for (int64_t p = 0; p < job.num_packets; ++p) {
        const int64_t packet = job.place_of(p);
        const auto* tail = reinterpret_cast<const float*>(job.packets + packet * job.packet_bytes + job.layout.tail);
        if (job.to_places) {
          static_cast<float*>(job.out.data)[packet * job.shape.num_elements + first + i] = 0 + tail[i];
        } else {
          sum += tail[i];
        }
      }
      if (!job.to_places) {
        store_scaled_values<1>({sum}, job.scale, job.out, first + i);
      }
    });
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
