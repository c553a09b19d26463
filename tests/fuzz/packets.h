// What the fuzzers of codecs share: pieces to encode, packets in memory of their exact size, and damage to them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <vector>

#include "communicator/scratch.h"
#include "decisions.h"
#include "isthmus/codec.h"

namespace isthmus::fuzz {

// Ends the process, so that the fuzzer keeps the input, if what must hold does not.
void require(bool condition, const char* what);

// Memory of exactly this size on a boundary of 64 bytes, as packets lie: whatever touches more is seen.
class Bytes {
 public:
  explicit Bytes(int64_t size) : size_(size), memory_(allocate_aligned(size)) {}

  int64_t size() const { return size_; }
  uint8_t* data() const { return reinterpret_cast<uint8_t*>(memory_.get()); }
  Buffer buffer() const { return {memory_.get(), size_, DataType::kByte}; }
  std::vector<uint8_t> copy() const { return {data(), data() + size_}; }

 private:
  int64_t size_;
  AlignedMemory memory_;
};

// Values of all magnitudes, with zeros, denormals, Inf and NaN among them.
std::vector<float> make_values(int64_t num_elements, uint32_t seed);

ConstBuffer view(const std::vector<float>& values);
Buffer view(std::vector<float>& values);

// Damages `packet` as long as there are decisions: flips bits, changes, moves and clears words, most of them near the
// beginning, where the sections that steer decoding are; or overwrites it with the decisions themselves.
void damage(Decisions& decisions, const Bytes& packet);

// Gives a damaged packet the checksum that fits it, as somebody who makes packets up would.
void reseal(const Bytes& packet);

// Whether `decode` accepts; anything but a PacketError gets through and ends the process.
bool accepts(const std::function<void()>& decode);

}  // namespace isthmus::fuzz
