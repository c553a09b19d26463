// What the fuzzers of codecs share: pieces to encode, packets in memory of their exact size, and damage to them.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/aligned_memory.h"
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

// 0 ... most, and most often few, which are fast to work on.
int64_t consume_size(FuzzedDataProvider& provider, int64_t most);

// The identity of a unit, and the step; `sender` is any number.
PacketContext consume_context(FuzzedDataProvider& provider, uint32_t sender = 0);

// Damages `packet` as long as the input lasts: flips bits, changes, moves and clears words, most of them near the
// beginning, where the sections that steer decoding are; or overwrites it with the input itself.
void damage(FuzzedDataProvider& provider, const Bytes& packet);

// Gives a damaged packet the checksum that fits it, as somebody who makes packets up would.
void reseal(const Bytes& packet);

// Whether `decode` accepts; anything but a PacketError gets through and ends the process.
bool accepts(const std::function<void()>& decode);

}  // namespace isthmus::fuzz
