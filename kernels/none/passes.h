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
// allow it, and never the word that holds padding.
template <typename Wire>
int64_t whole_words(int64_t num_elements, bool aligned) {
  return aligned ? num_elements / WordsOf<Wire, 1>::kValues : 0;
}

// Only sums of float16 could overflow.
template <typename Wire>
inline constexpr bool kMayDivide = std::is_same_v<Wire, Float16>;

// Writes the values of a packet, and zeros to its end.
template <typename Piece, typename Wire>
struct EncodeValues {
  static constexpr int kThreads = kChecksumThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  NoneEncodeJob job;
  int64_t num_whole_words;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    const int64_t num_words = (job.packet_bytes - kHeaderBytes) / 8;
    uint64_t sum = 0;
    for_each_of_all(group, checksum_pairs(num_words),
                    [&](int64_t pair) { sum += walk_pair(pair, num_words, num_whole_words, *this); });
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
    if constexpr (std::is_same_v<Piece, Wire>) {
      return value;  // the very bits
    } else {
      return narrow<Wire>(widen(value));
    }
  }
};

// The header of a packet whose values are written. One group.
struct FinishPacket {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  EncodeJobBase job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() == 0) {
      write_header(group, job);
    }
  }
};

// The values of one packet, added to sums or put in their place.
template <typename Wire, typename Sum>
struct AddPacket {
  static constexpr int kPairValues = WordsOf<Wire, 2>::kValues;
  struct Loaded {
    WordPair words;
    SeveralOf<Sum, kPairValues> sums;
  };

  const uint64_t* words;
  Sum* out;
  int64_t num_elements;
  int divisor;
  bool replaces;

  ISTHMUS_DEVICE Loaded load(int64_t w) const {
    Loaded loaded = {};
    loaded.words = *reinterpret_cast<const WordPair*>(words + w);
    if (!replaces) {
      loaded.sums = reinterpret_cast<const SeveralOf<Sum, kPairValues>*>(out)[w / 2];
    }
    return loaded;
  }

  ISTHMUS_DEVICE WordPair use(int64_t w, Loaded loaded) const {
    WordsOf<Wire, 2> pair;
    pair.words = loaded.words;
    ISTHMUS_UNROLL
    for (int i = 0; i < kPairValues; ++i) {
      loaded.sums.value[i] += decode_value(pair.value[i]);
    }
    reinterpret_cast<SeveralOf<Sum, kPairValues>*>(out)[w / 2] = loaded.sums;
    return loaded.words;
  }

  ISTHMUS_DEVICE uint64_t one(int64_t w) const {
    constexpr int kValues = WordsOf<Wire, 1>::kValues;
    WordsOf<Wire, 1> word;
    word.words.value[0] = words[w];
    for (int i = 0; i < kValues; ++i) {
      const int64_t element = w * kValues + i;
      if (element < num_elements) {
        out[element] = (replaces ? Sum{0} : out[element]) + decode_value(word.value[i]);
      }
    }
    return words[w];
  }

 private:
  ISTHMUS_DEVICE Sum decode_value(Wire value) const {
    if (kMayDivide<Wire> && divisor != 1) {
      return static_cast<Sum>(scaled<float>(value, divisor));
    }
    return static_cast<Sum>(widen(value));
  }
};

// out += the values of each packet, in the order of the packets; or each packet to its place. Nothing after a fault.
template <typename Wire, typename Sum>
struct DecodeValues {
  static constexpr int kThreads = kChecksumThreads;
  static constexpr int64_t kTogether = 16;  // packets; each thread has a word for each
  static constexpr int64_t kMaxSharedBytes = 8 * kThreads * kTogether;
  static int64_t shared_bytes(int64_t num_packets) {
    return 8 * kThreads * (num_packets < kTogether ? num_packets : kTogether);
  }

  NoneDecodeJob job;
  int64_t num_whole_words;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() == 0 && group.thread() == 0) {
      *job.state = DecodeState{};
    }
    if (job.fault->reported != 0) {
      return;
    }
    for (int64_t first = 0; first < job.num_packets; first += kTogether) {
      const int64_t left = job.num_packets - first;
      decode(group, first, left < kTogether ? left : kTogether);
    }
  }

 private:
  // All packets' values of the same elements one after the other: the sums stay in the cache. A word is of the same
  // thread in every packet, so an element's sums keep their order.
  template <typename Group>
  ISTHMUS_DEVICE void decode(Group& group, int64_t first, int64_t count) const {
    const int64_t num_words = (job.packet_bytes - kHeaderBytes) / 8;
    uint64_t* checksums = &group.template shared<uint64_t>() + group.thread();  // of this thread, one a packet
    for (int64_t i = 0; i < count; ++i) {
      checksums[i * group.size()] = 0;
    }
    for_each_of_all(group, checksum_pairs(num_words), [&](int64_t pair) {
      for (int64_t i = 0; i < count; ++i) {
        checksums[i * group.size()] += walk_pair(pair, num_words, num_whole_words, access(first + i));
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t checksum = group.sum(checksums[i * group.size()]);
      if (group.thread() == 0) {
        write_part(group, job.parts, first + i, checksum);
      }
    }
  }

  ISTHMUS_DEVICE AddPacket<Wire, Sum> access(int64_t packet) const {
    const auto* words = reinterpret_cast<const uint64_t*>(job.packets + packet * job.packet_bytes + kHeaderBytes);
    auto* out = static_cast<Sum*>(job.out.data) + (job.to_places ? packet * job.num_elements : 0);
    return {words, out, job.num_elements, job.divisor, job.to_places};
  }
};

// A group a packet; the last group reports faults.
struct CheckHeaders {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  DecodeJobBase job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (job.fault->reported != 0) {
      return;
    }
    for_each_by_group(group, job.num_packets, [&](int64_t packet) { check_header(group, job, packet); });
    if (group.is_last(job.state->arrived)) {
      finish_fault(group, job);
    }
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
