// The entropy coder of weight differences (coder.h) for threads of a group that decode.
#pragma once

#include <cstdint>

#include "kernels/weights/block.h"
#include "kernels/weights/job.h"
#include "kernels/weights/team.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// The lanes of a team that decodes.
template <typename Format, typename Group>
class WeightLaneDecoder {
 public:
  using Team = WeightTeam<Group>;
  using Bits = typename Format::Bits;
  static constexpr int kOwn = Team::kOwn;

  // Words past the last are 0; are_words_used() is then false.
  ISTHMUS_DEVICE WeightLaneDecoder(const Team& team, const WeightDecodeTable& table, const uint16_t* words,
                                   int num_words)
      : team_(team), table_(table), words_(words), num_words_(num_words) {}

  // states: those of all lanes. If not active, it reads nothing.
  ISTHMUS_DEVICE void begin(const uint16_t* states, bool is_active) {
    for (int own = 0; own < kOwn; ++own) {
      states_[own] = is_active ? states[team_.lane(own)] : kWeightLeastState;
    }
    refill();
  }

  // Turns old bits into new ones; those of escapes are wrong. If not active, it does nothing.
  ISTHMUS_DEVICE void decode(Bits (&bits)[kOwn], int32_t scale, bool is_active) {
    WeightLaw<OneWeightLane> laws[kOwn];
    WeightSymbol<OneWeightLane> symbols[kOwn];
    bool any_plain = false;
    for (int own = 0; own < kOwn; ++own) {
      laws[own] = law_of_weight<Format, OneWeightLane>(bits[own], scale);
      any_plain |= laws[own].plain_bits > 0;
      const uint32_t slot = states_[own] & (kWeightSlots - 1);
      const uint32_t token = table_.of_slot[static_cast<uint32_t>(laws[own].row) << kWeightSlotBits | slot];
      const uint32_t entry = table_.tokens.of_token[laws[own].row * kWeightTokens + token];
      symbols[own] = {static_cast<int32_t>(token), 0};
      const uint32_t next =
          weight_frequency(entry) * (states_[own] >> kWeightSlotBits) + slot - weight_first_slot(entry);
      states_[own] = is_active ? next : states_[own];
    }
    refill();
    // Lanes without plain bits, in inactive steps and in other teams, stay as they are here.
    if (team_.any(any_plain)) {
      ISTHMUS_UNROLL
      for (int stage = 0; stage < Format::kPlainStages; ++stage) {
        for (int own = 0; own < kOwn; ++own) {
          const uint32_t count = plain_bits_of_stage<OneWeightLane>(laws[own].plain_bits, stage);
          symbols[own].plain |= (states_[own] & ((1U << count) - 1)) << (stage * kWeightPlainBits);
          states_[own] >>= count;
        }
        refill();
      }
    }
    for (int own = 0; own < kOwn; ++own) {
      bits[own] = static_cast<Bits>(moved_weight<Format, OneWeightLane>(bits[own], symbols[own], laws[own], scale));
    }
  }

  // Whether all words are used and the states are those that encoding began with.
  ISTHMUS_DEVICE bool is_at_end() const {
    bool differs[kOwn];
    for (int own = 0; own < kOwn; ++own) {
      differs[own] = states_[own] != kWeightLeastState;
    }
    return team_.vote(differs) == 0 && next_word_ == num_words_;
  }

 private:
  // Each lane of small state takes a word, the lowest lane first.
  ISTHMUS_DEVICE void refill() {
    bool takes[kOwn];
    for (int own = 0; own < kOwn; ++own) {
      takes[own] = states_[own] < kWeightLeastState;
    }
    const uint32_t takers = team_.vote(takes);
    for (int own = 0; own < kOwn; ++own) {
      if (takes[own]) {
        const int place = next_word_ + count_bits(takers & ((1U << team_.lane(own)) - 1));
        states_[own] = states_[own] << kWeightWordBits | (place < num_words_ ? words_[place] : 0);
      }
    }
    next_word_ += count_bits(takers);
  }

  const Team& team_;
  const WeightDecodeTable& table_;
  const uint16_t* words_;
  int num_words_;
  int next_word_ = 0;
  uint32_t states_[kOwn];
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
