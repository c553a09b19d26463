// The checksum of packets. docs/packet_format.md defines it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/block/checksum.h"

namespace isthmus {

// Over 64-bit words, in independent chains: eight at a time here, thousands on a GPU. A step is one to one in the chain
// and in the word, and so is the end of a chain: any damage to one word changes the checksum.
class Checksum {
 public:
  // The checksum of a packet is the sum of those of its parts, if each but the first begins with a segment.
  explicit Checksum(int64_t first_segment = 0) : segment_(first_segment) {}

  // The next `num_bytes` of the data: a multiple of 8, and of 64 in every call but the last. No alignment is needed.
  void add(const void* data, int64_t num_bytes) {
    add(data, num_bytes, [](int64_t) {});
  }

  // As add(), and calls use_row(offset) for each 64 bytes: its memory accesses overlap with the chains' arithmetic.
  template <typename UseRow>
  void add(const void* data, int64_t num_bytes, const UseRow& use_row) {
    const auto* bytes = static_cast<const std::byte*>(data);
    for (int64_t done = 0; done < num_bytes;) {
      const int64_t part = std::min(num_bytes - done, kernels::kChecksumSegmentBytes - segment_bytes_);
      add_part(bytes + done, part, [&](int64_t offset) { use_row(done + offset); });
      done += part;
    }
  }

  uint64_t value() const { return segment_bytes_ == 0 ? sum_ : sum_ + end_of_chains(); }

 private:
  static constexpr int64_t kLanes = kernels::kChecksumLanes;
  using Chains = std::array<uint64_t, kLanes>;

  static Chains begin_chains(int64_t segment) {
    Chains chains;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      chains[lane] = kernels::checksum_begin(segment, lane);
    }
    return chains;
  }

  static void add_words(const std::byte* bytes, int64_t num_words, Chains& chains) {
    for (int64_t lane = 0; lane < num_words; ++lane) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + lane * kernels::kChecksumWordBytes, sizeof(word));
      chains[lane] = kernels::checksum_step(chains[lane], word);
    }
  }

  // Bytes of one segment.
  template <typename UseRow>
  void add_part(const std::byte* bytes, int64_t num_bytes, const UseRow& use_row) {
    Chains chains = chains_;  // in registers: the compiler must assume that `bytes` aliases this object
    segment_bytes_ += num_bytes;
    int64_t offset = 0;
    for (; num_bytes - offset >= kernels::kChecksumRowBytes; offset += kernels::kChecksumRowBytes) {
      add_words(bytes + offset, kLanes, chains);
      use_row(offset);
    }
    add_words(bytes + offset, (num_bytes - offset) / kernels::kChecksumWordBytes, chains);
    chains_ = chains;
    if (segment_bytes_ == kernels::kChecksumSegmentBytes) {
      sum_ += end_of_chains();
      chains_ = begin_chains(++segment_);
      segment_bytes_ = 0;
    }
  }

  uint64_t end_of_chains() const {
    uint64_t sum = 0;
    for (const uint64_t chain : chains_) {
      sum += kernels::checksum_end(chain);
    }
    return sum;
  }

  int64_t segment_;
  int64_t segment_bytes_ = 0;  // of the segment, so far; full ones are in sum_
  uint64_t sum_ = 0;
  Chains chains_ = begin_chains(segment_);
};

}  // namespace isthmus
