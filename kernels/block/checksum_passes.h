// Checksums of packets on many groups: each thread sums its words, each group writes its part, and whoever seals or
// checks the packet adds the parts.
#pragma once

#include "kernels/block/device.h"
#include "kernels/block/hashes.h"
#include "kernels/block/job.h"
#include "kernels/block/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

using WordPair = SeveralOf<uint64_t, 2>;

// Threads share the words of a checksum in segments of 4 KiB: each takes 16 bytes of every row of 64.
inline constexpr int64_t kRowWords = 8;
inline constexpr int64_t kSegmentWords = 64 * kRowWords;
inline constexpr int64_t kPairsOfSegment = kRowWords / 2;

constexpr int64_t checksum_pairs(int64_t num_words) { return divide_up(num_words, kSegmentWords) * kPairsOfSegment; }

// Visits the words that one thread takes in a segment: w, w + kRowWords, ... , each with its neighbour. The first
// num_whole_words may be loaded in pairs: rows(w) visits kRows pairs, from w on, and one_pair(w) one. word(w) visits a
// single word.
template <int kRows, typename Rows, typename OnePair, typename Word>
ISTHMUS_DEVICE void walk_rows(int64_t pair, int64_t num_words, int64_t num_whole_words, const Rows& rows,
                              const OnePair& one_pair, const Word& word) {
  const int64_t segment_end = (pair / kPairsOfSegment + 1) * kSegmentWords;
  const int64_t end = segment_end < num_words ? segment_end : num_words;
  const int64_t whole_end = end < num_whole_words ? end : num_whole_words;
  int64_t w = pair / kPairsOfSegment * kSegmentWords + pair % kPairsOfSegment * 2;
  for (; w + (kRows - 1) * kRowWords + 2 <= whole_end; w += kRows * kRowWords) {
    rows(w);
  }
  for (; w + 2 <= whole_end; w += kRowWords) {
    one_pair(w);
  }
  for (; w < end; w += kRowWords) {
    word(w);
    if (w + 1 < end) {
      word(w + 1);
    }
  }
}

ISTHMUS_DEVICE uint64_t checksum_of_pair(const WordPair& words, int64_t place) {
  return checksum_of_word(words.value[0], place) + checksum_of_word(words.value[1], place + 1);
}

// Each thread has loads of 256 bytes in flight, so that the few threads of a small packet still saturate the memory.
template <typename Loaded>
constexpr int rows_in_flight() {
  int rows = 2;
  while (rows < 16 && 2 * rows * static_cast<int>(sizeof(Loaded)) <= 256) {
    rows *= 2;
  }
  return rows;
}

// Adds the checksum of one thread's pair of words in a segment, in a packet of `num_words` words; the first word is the
// packet's `place`-th. Access has
//   load(w)          the loads for words w and w + 1, both below num_whole_words
//   use(w, loaded)   processes them, and returns the two words
//   one(w)           the same for any one word
// Loads for several rows come before the first use: stores between them would delay them.
template <typename Access>
ISTHMUS_DEVICE uint64_t walk_pair(int64_t pair, int64_t num_words, int64_t num_whole_words, int64_t place,
                                  const Access& access) {
  using Loaded = decltype(access.load(0));
  constexpr int kRows = rows_in_flight<Loaded>();
  uint64_t sum = 0;
  const auto use = [&](int64_t w, const Loaded& loaded) { sum += checksum_of_pair(access.use(w, loaded), place + w); };
  walk_rows<kRows>(
      pair, num_words, num_whole_words,
      [&](int64_t w) {
        Loaded loaded[kRows];
        ISTHMUS_UNROLL
        for (int r = 0; r < kRows; ++r) {
          loaded[r] = access.load(w + r * kRowWords);
        }
        ISTHMUS_UNROLL
        for (int r = 0; r < kRows; ++r) {
          use(w + r * kRowWords, loaded[r]);
        }
      },
      [&](int64_t w) { use(w, access.load(w)); },
      [&](int64_t w) { sum += checksum_of_word(access.one(w), place + w); });
  return sum;
}

// The bytes of a packet whose checksum an earlier pass took: multiples of 16.
struct SummedBytes {
  int64_t begin = 0;
  int64_t end = 0;

  ISTHMUS_DEVICE int64_t size() const { return end - begin; }
};

// A pass that takes checksums has few threads in a group, so that a small packet spreads over many multiprocessors.
inline constexpr int kChecksumThreads = 128;

// How many groups take the checksum of so many words, of packets of this size, or of their remaining bytes.
inline int64_t checksum_groups_of_words(int64_t num_words) {
  const int64_t groups = divide_up(checksum_pairs(num_words), kChecksumThreads);
  return groups < 1 ? 1 : groups < ChecksumParts::kMaxGroups ? groups : ChecksumParts::kMaxGroups;
}
inline int64_t checksum_groups(int64_t packet_bytes, const SummedBytes& summed = {}) {
  return checksum_groups_of_words((packet_bytes - summed.size()) / kChecksumWordBytes - kHeaderWords);
}

// Writes a group's part of a packet's checksum. Thread 0 of each group calls it.
template <typename Group>
ISTHMUS_DEVICE void write_part(const Group& group, const ChecksumParts& parts, int64_t packet, uint64_t part) {
  parts.words[1 + packet * ChecksumParts::kMaxGroups + group.group_number()] = part;
  if (group.group_number() == 0) {
    parts.words[0] = static_cast<uint64_t>(group.num_groups());
  }
}

// Adds up the checksum of a packet whose parts are all written. All threads of a group call it.
template <typename Group>
ISTHMUS_DEVICE uint64_t sum_parts(Group& group, const ChecksumParts& parts, int64_t packet) {
  uint64_t sum = 0;
  for_each_of_group(group, static_cast<int64_t>(parts.words[0]),
                    [&](int64_t i) { sum += parts.words[1 + packet * ChecksumParts::kMaxGroups + i]; });
  return group.sum(sum);
}

// Up to this many packets have their checksums taken while they are decoded: then all groups that could be resident
// have room for the sums. The bytes of more packets are read once more.
inline constexpr int64_t kPacketsSummed = 32;
inline bool takes_checksums(const DecodeJobBase& job) { return job.num_packets <= kPacketsSummed; }

// This thread's part of each packet's checksum. It is in the group's shared memory, because registers are scarce.
class SumsOfPackets {
 public:
  static constexpr int64_t bytes(int64_t threads, int64_t num_packets) {
    return static_cast<int64_t>(sizeof(uint64_t)) * threads * num_packets;
  }
  static int64_t bytes(int64_t threads, const DecodeJobBase& job) {
    return takes_checksums(job) ? bytes(threads, job.num_packets) : 0;
  }

  template <typename Group>
  explicit ISTHMUS_DEVICE SumsOfPackets(Group& group)
      : words_(&group.template shared<uint64_t>() + group.thread()), step_(group.size()) {}

  ISTHMUS_DEVICE void clear(int64_t num_packets) const {
    for (int64_t i = 0; i < num_packets; ++i) {
      words_[i * step_] = 0;
    }
  }
  ISTHMUS_DEVICE void add(int64_t i, uint64_t sum) const { words_[i * step_] += sum; }

  // All threads of the group.
  template <typename Group>
  ISTHMUS_DEVICE void write_part_of(Group& group, int64_t i, const ChecksumParts& parts, int64_t packet) const {
    const uint64_t sum = group.sum(words_[i * step_]);
    if (group.thread() == 0) {
      write_part(group, parts, packet, sum);
    }
  }

 private:
  uint64_t* words_;
  int64_t step_;
};

// The first pass of a decoding that takes checksums on the way, or none of them: decode(checksums). After a fault it
// does nothing.
template <typename Group, typename Decode>
ISTHMUS_DEVICE void decode_with_checksums(Group& group, const DecodeJobBase& job, bool with_checksums,
                                          const Decode& decode) {
  if (group.group_number() == 0 && group.thread() == 0) {
    *job.state = DecodeState{};
  }
  if (job.fault->reported != 0) {
    return;
  }
  const SumsOfPackets checksums(group);
  const int64_t num_checksums = with_checksums ? job.num_packets : 0;
  checksums.clear(num_checksums);
  decode(checksums);
  for (int64_t i = 0; i < num_checksums; ++i) {
    checksums.write_part_of(group, i, job.parts, job.place_of(i));
  }
}

// Access to words that are only read.
struct ReadWords {
  const uint64_t* words;

  ISTHMUS_DEVICE WordPair load(int64_t w) const { return *reinterpret_cast<const WordPair*>(words + w); }
  ISTHMUS_DEVICE WordPair use(int64_t, const WordPair& loaded) const { return loaded; }
  ISTHMUS_DEVICE uint64_t one(int64_t w) const { return words[w]; }
};

// This thread's part of the checksum of words, which are fastest to read from a multiple of 16 bytes on. All threads of
// the first `num_groups` groups call it.
template <typename Group>
ISTHMUS_DEVICE uint64_t sum_words(const Group& group, const void* words, int64_t num_words, int64_t place,
                                  int64_t num_groups) {
  const ReadWords access = {static_cast<const uint64_t*>(words)};
  const int64_t num_whole_words = is_aligned(words, sizeof(WordPair)) ? num_words : 0;
  uint64_t sum = 0;
  for (int64_t pair = group.group_number() * group.size() + group.thread(); pair < checksum_pairs(num_words);
       pair += num_groups * group.size()) {
    sum += walk_pair(pair, num_words, num_whole_words, place, access);
  }
  return sum;
}

// Writes this group's part of the checksum of words.
template <typename Group>
ISTHMUS_DEVICE void checksum_words(Group& group, const void* words, int64_t num_words, int64_t packet_number,
                                   const ChecksumParts& parts) {
  const uint64_t sum = group.sum(sum_words(group, words, num_words, 0, group.num_groups()));
  if (group.thread() == 0) {
    write_part(group, parts, packet_number, sum);
  }
}

// Adds the checksum of the remaining bytes to the parts that are written already.
template <typename Group>
ISTHMUS_DEVICE void add_checksum_beside(Group& group, const uint8_t* packet, int64_t packet_bytes,
                                        const SummedBytes& summed, int64_t packet_number, const ChecksumParts& parts) {
  constexpr int64_t kHeaderBytes = kHeaderWords * kChecksumWordBytes;
  const auto num_parts = static_cast<int64_t>(parts.words[0]);
  const int64_t num_groups = group.num_groups() < num_parts ? group.num_groups() : num_parts;
  if (group.group_number() >= num_groups) {
    return;
  }
  const auto sum_between = [&](int64_t begin, int64_t end) {
    return sum_words(group, packet + begin, (end - begin) / kChecksumWordBytes,
                     (begin - kHeaderBytes) / kChecksumWordBytes, num_groups);
  };
  const uint64_t sum = group.sum(sum_between(kHeaderBytes, summed.begin) + sum_between(summed.end, packet_bytes));
  if (group.thread() == 0) {
    parts.words[1 + packet_number * ChecksumParts::kMaxGroups + group.group_number()] += sum;
  }
}

// Completes the parts of a packet's checksum.
template <typename Group>
ISTHMUS_DEVICE void checksum_packet(Group& group, const uint8_t* packet, int64_t packet_bytes,
                                    const SummedBytes& summed, int64_t packet_number, const ChecksumParts& parts) {
  if (summed.size() > 0) {
    add_checksum_beside(group, packet, packet_bytes, summed, packet_number, parts);
  } else {
    const auto* words = reinterpret_cast<const uint64_t*>(packet) + kHeaderWords;
    checksum_words(group, words, packet_bytes / kChecksumWordBytes - kHeaderWords, packet_number, parts);
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
