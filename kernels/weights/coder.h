// The entropy coder of weight differences: range asymmetric numeral systems (J. Duda, arXiv:1311.2540) in 16
// interleaved lanes, a step of 16 neighbouring elements at a time.
//
// Decoding ascends through elements and words, encoding descends. In each step the lanes take their tokens, lane 0
// first; then, if any lane has them, their plain bits, the lowest first, kWeightPlainBits at a time.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/weights/lanes.h"
#include "kernels/weights/tables.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// What is sent of a block, written from its end to its beginning.
struct WeightWriter {
  uint16_t* words;    // first word written; up to 16 bytes below it are overwritten
  uint16_t* escapes;  // behind the last written index
};

template <typename Format>
class WeightCoder {
 public:
  using Lanes = WeightLanes;
  using Bits = typename Format::Bits;
  using Word = typename Lanes::Word;
  using Int = typename Lanes::Int;
  static constexpr int64_t kVectors = kWeightLanes / Lanes::kLanes;
  using Words = std::array<Word, kVectors>;

  WeightCoder() { states_.fill(Word{} + kWeightLeastState); }

  // index: place of the first of the 16 elements in its block.
  [[gnu::always_inline]] void encode(const Bits* old_bits, const Bits* new_bits, int32_t scale, int64_t index,
                                     WeightWriter& writer) {
    std::array<WeightLaw<Lanes>, kVectors> laws;
    std::array<WeightSymbol<Lanes>, kVectors> symbols;
    Word any_plain{};
    for (int64_t v = 0; v < kVectors; ++v) {
      const Word old_word = Lanes::load(old_bits + v * Lanes::kLanes);
      laws[v] = law_of_weight<Format, Lanes>(old_word, scale);
      symbols[v] = weight_symbol<Format, Lanes>(old_word, Lanes::load(new_bits + v * Lanes::kLanes), laws[v], scale);
      any_plain |= (Word)laws[v].plain_bits;
    }
    for (int stage = Format::kPlainStages - 1; stage >= 0 && Lanes::any(any_plain); --stage) {
      for (int64_t v = kVectors - 1; v >= 0; --v) {
        const Word bits = plain_bits_of_stage<Lanes>(laws[v].plain_bits, stage);
        const Word limit = (Word{} + (kWeightLeastState << kWeightWordBits)) >> bits;
        const Word part = symbols[v].plain >> (stage * kWeightPlainBits) & (((Word{} + 1) << bits) - 1);
        states_[v] = Lanes::drain(states_[v], limit, writer.words) << bits | part;
      }
    }
    for (int64_t v = kVectors - 1; v >= 0; --v) {
      const Word symbol = (Word)laws[v].row * kWeightTokens + (Word)symbols[v].token;
      const Word entry = Lanes::look_up(kWeightTables.encode[0].data(), symbol);
      note_escapes(Lanes::highest_bits(entry), index + v * Lanes::kLanes, writer);
      const Word frequency = weight_frequency(entry);
      const Word state = Lanes::drain(states_[v], frequency << kWeightWordBits, writer.words);
      states_[v] = state + Lanes::quotient(state, frequency) * (kWeightSlots - frequency) + weight_first_slot(entry);
    }
  }

  // Writes the states after the last step.
  void end(std::array<uint16_t, kWeightLanes>& states, WeightWriter& writer) {
    for (int64_t v = kVectors - 1; v >= 0; --v) {
      states_[v] = Lanes::drain(states_[v], Word{} + (1U << kWeightWordBits), writer.words);
      for (int64_t lane = 0; lane < Lanes::kLanes; ++lane) {
        states[v * Lanes::kLanes + lane] = static_cast<uint16_t>(Lanes::lane(states_[v], static_cast<int>(lane)));
      }
    }
  }

  void begin(const std::array<uint16_t, kWeightLanes>& states, const uint16_t*& words) {
    for (int64_t v = 0; v < kVectors; ++v) {
      states_[v] = Lanes::refill(Lanes::load(states.data() + v * Lanes::kLanes), words);
    }
  }

  // Reads up to 128 bytes behind the words that came before the step.
  [[gnu::always_inline]] void decode(Bits* bits, int32_t scale, const uint16_t*& words) {
    Words old_words;
    std::array<WeightLaw<Lanes>, kVectors> laws;
    std::array<WeightSymbol<Lanes>, kVectors> symbols;
    Word any_plain{};
    for (int64_t v = 0; v < kVectors; ++v) {
      old_words[v] = Lanes::load(bits + v * Lanes::kLanes);
      laws[v] = law_of_weight<Format, Lanes>(old_words[v], scale);
      any_plain |= (Word)laws[v].plain_bits;
      const Word slot = (Word)laws[v].row << kWeightSlotBits | (states_[v] & (kWeightSlots - 1));
      const Word entry = Lanes::look_up(kWeightTables.decode[0].data(), slot);
      const Word frequency = entry >> kWeightFrequencyShift & ((1U << (kWeightPlaceShift - kWeightFrequencyShift)) - 1);
      symbols[v] = {(Int)(entry & (kWeightTokens - 1)), Word{}};
      states_[v] = frequency * (states_[v] >> kWeightSlotBits) + (entry >> kWeightPlaceShift);
    }
    for (int64_t v = 0; v < kVectors; ++v) {
      states_[v] = Lanes::refill(states_[v], words);
    }
    for (int stage = 0; stage < Format::kPlainStages && Lanes::any(any_plain); ++stage) {
      for (int64_t v = 0; v < kVectors; ++v) {
        const Word count = plain_bits_of_stage<Lanes>(laws[v].plain_bits, stage);
        symbols[v].plain |= (states_[v] & (((Word{} + 1) << count) - 1)) << (stage * kWeightPlainBits);
        states_[v] = Lanes::refill(states_[v] >> count, words);
      }
    }
    for (int64_t v = 0; v < kVectors; ++v) {
      Lanes::store(moved_weight<Format, Lanes>(old_words[v], symbols[v], laws[v], scale), bits + v * Lanes::kLanes);
    }
  }

  // Whether the states are those that encoding began with.
  bool is_at_start() const {
    bool all = true;
    for (const Word& state : states_) {
      all = all && !Lanes::any(state ^ kWeightLeastState);
    }
    return all;
  }

 private:
  [[gnu::always_inline]] static void note_escapes(unsigned lanes, int64_t index, WeightWriter& writer) {
    while (lanes != 0) {
      const int lane = 31 - __builtin_clz(lanes);
      *writer.escapes++ = static_cast<uint16_t>(index + lane);
      lanes ^= 1U << lane;
    }
  }

  Words states_;
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
