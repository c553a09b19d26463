// Codec `none` on many groups: values are converted, moved and checksummed in one pass, 16 bytes of a packet at a time.
#pragma once

#include <type_traits>

#include "kernels/block/float_types.h"
#include "kernels/block/packet_passes.h"
#include "kernels/none/job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr int kHeaderBytes = 8 * kHeaderWords;

// The values of some words of a packet.
template <typename Wire, int kWords>
union WordsOf {
  static constexpr int kValues = kWords * 8 / sizeof(Wire);
  SeveralOf<uint64_t, kWords> words;
  Wire value[kValues];
};

// How many words of a packet of `num_elements` values may be loaded and stored in pairs: none unless all addresses
// allow it, and never the word with padding.
template <typename Wire>
int64_t whole_words(int64_t num_elements, bool aligned) {
  return aligned ? num_elements / WordsOf<Wire, 1>::kValues : 0;
}

// What accumulates a wire type.
template <typename Wire>
using SumOf = std::conditional_t<std::is_same_v<Wire, double>, double, float>;

// Only sums of float16 could overflow.
template <typename Wire>
inline constexpr bool kMayDivide = std::is_same_v<Wire, Float16>;

// Writes the values of a packet, and zeros to its end.
template <typename Piece, typename Wire>
struct EncodeValues {
  static constexpr int kThreads = kChecksumThreads;

  NoneEncodeJob job;
  int64_t num_whole_words;

  Moved moved() const { return {job.piece.bytes(), job.packet_bytes}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const int64_t num_words = (job.packet_bytes - kHeaderBytes) / 8;
    if (group.group_number() == 0 && group.thread() == 0) {
      begin_counting(job);
    }
    uint64_t sum = 0;
    for_each_of_all(group, checksum_pairs(num_words),
                    [&](int64_t pair) { sum += walk_pair(pair, num_words, num_whole_words, 0, *this); });
    sum = group.sum(sum);
    if (group.thread() == 0) {
      write_part(group, job.parts, 0, sum);
    }
  }

  // For walk_pair().
  using Loaded = SeveralOf<Piece, WordsOf<Wire, 2>::kValues>;
  ISTHMUS_DEVICE Loaded load(int64_t w) const { return static_cast<const Loaded*>(job.piece.data)[w / 2]; }

  ISTHMUS_DEVICE WordPair use(int64_t w, const Loaded& loaded) const {
    WordsOf<Wire, 2> pair;
    ISTHMUS_UNROLL
    for (int i = 0; i < pair.kValues; ++i) {
      pair.value[i] = encode_value(loaded.value[i]);
    }
    *reinterpret_cast<WordPair*>(words() + w) = pair.words;
    return pair.words;
  }

  ISTHMUS_DEVICE uint64_t one(int64_t w) const {
    const auto* piece = static_cast<const Piece*>(job.piece.data);
    constexpr int kValues = WordsOf<Wire, 1>::kValues;
    WordsOf<Wire, 1> word = {};
    for (int i = 0; i < kValues; ++i) {
      if (w * kValues + i < job.piece.num_elements) {
        word.value[i] = encode_value(piece[w * kValues + i]);
      }
    }
    words()[w] = word.words.value[0];
    return word.words.value[0];
  }

 private:
  ISTHMUS_DEVICE uint64_t* words() const { return reinterpret_cast<uint64_t*>(job.packet + kHeaderBytes); }

  ISTHMUS_DEVICE Wire encode_value(Piece value) const {
    if (kMayDivide<Wire> && job.divisor != 1) {
      return scaled<Wire>(value, 1.0 / job.divisor);
    }
    if constexpr (std::is_same_v<Piece, Wire> && !std::is_same_v<Wire, Float16>) {
      return value;
    } else {
      return narrow<Wire>(widen(value));  // of float16, too: NaN becomes the one that there is
    }
  }
};

// Puts the values of all packets in their places, or adds them to the own piece and scales the sum. It also takes their
// checksums.
template <typename Wire, typename Own, typename Out>
struct DecodeValues {
  static constexpr int kThreads = kChecksumThreads;
  static constexpr int64_t kMaxSharedBytes = SumsOfPackets::bytes(kThreads, kPacketsSummed);

  NoneDecodeJob job;
  int64_t num_whole_words;
  bool with_checksums = takes_checksums(job);

  Moved moved() const { return {job.bytes_of_packets() + job.own.bytes(), job.out.bytes()}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const int64_t at_once = job.to_places ? 1 : job.num_packets;
    const int64_t num_words = (job.packet_bytes - kHeaderBytes) / 8;
    decode_with_checksums(group, job, with_checksums, [&](const SumsOfPackets& checksums) {
      for (int64_t first = 0; first < job.num_packets; first += at_once) {
        // A thread has the same word in every packet, so that an element's sums keep their order, and each element is
        // read, summed and written once.
        for_each_of_all(group, checksum_pairs(num_words), [&](int64_t pair) {
          walk_rows<kRowsAtOnce>(
              pair, num_words, num_whole_words, [&](int64_t w) { sum_rows<kRowsAtOnce>(w, checksums, first, at_once); },
              [&](int64_t w) { sum_rows<1>(w, checksums, first, at_once); },
              [&](int64_t w) { sum_word(w, checksums, first, at_once); });
        });
      }
    });
  }

 private:
  using Sum = SumOf<Wire>;
  static constexpr int kPairValues = WordsOf<Wire, 2>::kValues;
  static constexpr int kRowsAtOnce = 128 / (kPairValues * static_cast<int>(sizeof(Sum)));  // 32 registers of sums

  // The pairs of words at w, and at the following rows of the segment.
  template <int kRows>
  ISTHMUS_DEVICE void sum_rows(int64_t w, const SumsOfPackets& checksums, int64_t first, int64_t count) const {
    Sum sums[kRows][kPairValues];
    ISTHMUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int64_t run = (w + r * kRowWords) / 2;
      SeveralOf<Own, kPairValues> loaded = {};
      if (own() != nullptr) {
        loaded = reinterpret_cast<const SeveralOf<Own, kPairValues>*>(own())[run];
      }
      ISTHMUS_UNROLL
      for (int v = 0; v < kPairValues; ++v) {
        sums[r][v] = static_cast<Sum>(widen(loaded.value[v]));
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      WordsOf<Wire, 2> pairs[kRows];
      ISTHMUS_UNROLL
      for (int r = 0; r < kRows; ++r) {
        pairs[r].words = *reinterpret_cast<const WordPair*>(words_of(first + i) + w + r * kRowWords);
      }
      uint64_t checksum = 0;
      ISTHMUS_UNROLL
      for (int r = 0; r < kRows; ++r) {
        checksum += checksum_of_pair(pairs[r].words, w + r * kRowWords);
        ISTHMUS_UNROLL
        for (int v = 0; v < kPairValues; ++v) {
          sums[r][v] += decode_value(pairs[r].value[v]);
        }
      }
      if (with_checksums) {
        checksums.add(first + i, checksum);
      }
    }
    ISTHMUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      SeveralOf<Out, kPairValues> result;
      ISTHMUS_UNROLL
      for (int v = 0; v < kPairValues; ++v) {
        result.value[v] = scaled<Out>(sums[r][v], job.scale);
      }
      reinterpret_cast<SeveralOf<Out, kPairValues>*>(out(first))[(w + r * kRowWords) / 2] = result;
    }
  }

  // One word, which may hold padding.
  ISTHMUS_DEVICE void sum_word(int64_t w, const SumsOfPackets& checksums, int64_t first, int64_t count) const {
    constexpr int kValues = WordsOf<Wire, 1>::kValues;
    Sum sums[kValues];
    for (int v = 0; v < kValues; ++v) {
      const int64_t element = w * kValues + v;
      sums[v] = own() != nullptr && element < job.num_elements ? static_cast<Sum>(widen(own()[element])) : Sum{0};
    }
    for (int64_t i = 0; i < count; ++i) {
      WordsOf<Wire, 1> word;
      word.words.value[0] = words_of(first + i)[w];
      if (with_checksums) {
        checksums.add(first + i, checksum_of_word(word.words.value[0], w));
      }
      for (int v = 0; v < kValues; ++v) {
        sums[v] += decode_value(word.value[v]);
      }
    }
    for (int v = 0; v < kValues; ++v) {
      if (w * kValues + v < job.num_elements) {
        out(first)[w * kValues + v] = scaled<Out>(sums[v], job.scale);
      }
    }
  }

  ISTHMUS_DEVICE const uint64_t* words_of(int64_t i) const {
    return reinterpret_cast<const uint64_t*>(job.packets + job.place_of(i) * job.packet_bytes + kHeaderBytes);
  }
  ISTHMUS_DEVICE const Own* own() const { return static_cast<const Own*>(job.own.data); }
  // Where packets from `first` on go.
  ISTHMUS_DEVICE Out* out(int64_t first) const {
    return static_cast<Out*>(job.out.data) + (job.to_places ? first * job.num_elements : 0);
  }

  ISTHMUS_DEVICE Sum decode_value(Wire value) const {
    if (kMayDivide<Wire> && job.divisor != 1) {
      return static_cast<Sum>(scaled<float>(value, job.divisor));
    }
    return static_cast<Sum>(widen(value));
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
