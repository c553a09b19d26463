// The entropy coder of weight differences (coder.h) for threads of a group that encode.
#pragma once

#include <cstdint>

#include "kernels/weights/block.h"
#include "kernels/weights/job.h"
#include "kernels/weights/team.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// The lanes of a team that encodes a block from its end to its beginning.
template <typename Format, typename Group>
class WeightLaneEncoder {
 public:
  using Team = WeightTeam<Group>;
  using Bits = typename Format::Bits;
  static constexpr int kOwn = Team::kOwn;

  // area: `area_units` words of 16 bits. Escapes go in from the front, words from the end. What does not fit is left
  // out, and the block is sent as it is.
  ISTHMUS_DEVICE WeightLaneEncoder(const Team& team, const WeightEncodeTable& table, uint16_t* area, int area_units)
      : team_(team), table_(table), area_(area), area_units_(area_units) {
    for (int own = 0; own < kOwn; ++own) {
      states_[own] = kWeightLeastState;
    }
  }

  // index: place of the first of the 16 elements in its block. If not active, it does nothing.
  ISTHMUS_DEVICE void encode(const Bits (&old_bits)[kOwn], const Bits (&new_bits)[kOwn], int32_t scale, int index,
                             bool is_active) {
    WeightLaw<OneWeightLane> laws[kOwn];
    WeightSymbol<OneWeightLane> symbols[kOwn];
    bool any_plain = false;
    for (int own = 0; own < kOwn; ++own) {
      laws[own] = law_of_weight<Format, OneWeightLane>(old_bits[own], scale);
      symbols[own] = weight_symbol<Format, OneWeightLane>(old_bits[own], new_bits[own], laws[own], scale);
      any_plain |= laws[own].plain_bits > 0;
    }
    uint32_t limits[kOwn];
    // Lanes without plain bits, in inactive steps and in other teams, stay as they are here.
    if (team_.any(any_plain)) {
      ISTHMUS_UNROLL
      for (int stage = Format::kPlainStages - 1; stage >= 0; --stage) {
        uint32_t counts[kOwn];
        for (int own = 0; own < kOwn; ++own) {
          counts[own] = plain_bits_of_stage<OneWeightLane>(laws[own].plain_bits, stage);
          limits[own] = (kWeightLeastState << kWeightWordBits) >> counts[own];
        }
        drain(limits, true);
        for (int own = 0; own < kOwn; ++own) {
          const uint32_t part = symbols[own].plain >> (stage * kWeightPlainBits) & ((1U << counts[own]) - 1);
          states_[own] = states_[own] << counts[own] | part;
        }
      }
    }
    uint32_t entries[kOwn];
    bool is_escape[kOwn];
    for (int own = 0; own < kOwn; ++own) {
      entries[own] = table_.of_token[laws[own].row * kWeightTokens + symbols[own].token];
      is_escape[own] = is_active && (entries[own] & kWeightIsEscape) != 0;
      limits[own] = weight_frequency(entries[own]) << kWeightWordBits;
    }
    note_escapes(is_escape, index);
    drain(limits, is_active);
    for (int own = 0; own < kOwn; ++own) {
      const uint32_t frequency = weight_frequency(entries[own]);
      const uint32_t next =
          states_[own] + states_[own] / frequency * (kWeightSlots - frequency) + weight_first_slot(entries[own]);
      states_[own] = is_active ? next : states_[own];
    }
  }

  // Reports what is known of the block after its last step. If not active, it writes nothing.
  ISTHMUS_DEVICE void end(WeightBlockParts& parts, bool is_active) {
    uint32_t limits[kOwn];
    for (int own = 0; own < kOwn; ++own) {
      limits[own] = 1U << kWeightWordBits;
    }
    drain(limits, is_active);
    if (!is_active) {
      return;
    }
    for (int own = 0; own < kOwn; ++own) {
      parts.states[team_.lane(own)] = static_cast<uint16_t>(states_[own]);
    }
    if (team_.thread() == 0) {
      parts.num_escapes = static_cast<uint16_t>(num_escapes_);
      parts.num_words = static_cast<uint32_t>(num_words_);
    }
  }

  ISTHMUS_DEVICE int64_t bytes() const {
    return static_cast<int64_t>(sizeof(WeightBlockHeader)) + 2 * num_words_ +
           num_escapes_ * static_cast<int64_t>(sizeof(uint16_t) + sizeof(Bits));
  }

 private:
  // Each lane whose state reaches its limit sends a word, downwards, the highest lane first.
  ISTHMUS_DEVICE void drain(const uint32_t (&limits)[kOwn], bool is_active) {
    bool sends[kOwn];
    for (int own = 0; own < kOwn; ++own) {
      sends[own] = is_active && states_[own] >= limits[own];
    }
    const uint32_t senders = team_.vote(sends);
    for (int own = 0; own < kOwn; ++own) {
      if (sends[own]) {
        const int place = area_units_ - 1 - num_words_ - count_bits(senders >> (team_.lane(own) + 1));
        if (place >= num_escapes_) {
          area_[place] = static_cast<uint16_t>(states_[own]);
        }
        states_[own] >>= kWeightWordBits;
      }
    }
    num_words_ += count_bits(senders);
  }

  // The highest lane goes first, because elements come in descending order.
  ISTHMUS_DEVICE void note_escapes(const bool (&is_escape)[kOwn], int index) {
    const uint32_t escapes = team_.vote(is_escape);
    for (int own = 0; own < kOwn; ++own) {
      if (is_escape[own]) {
        const int place = num_escapes_ + count_bits(escapes >> (team_.lane(own) + 1));
        if (place < area_units_ - num_words_) {
          area_[place] = static_cast<uint16_t>(index + team_.lane(own));
        }
      }
    }
    num_escapes_ += count_bits(escapes);
  }

  const Team& team_;
  const WeightEncodeTable& table_;
  uint16_t* area_;
  int area_units_;
  int num_words_ = 0;
  int num_escapes_ = 0;
  uint32_t states_[kOwn];
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
