// What the fuzzers of codecs share: pieces to encode, packets in memory of their exact size, and damage to them.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "isthmus/codec.h"
#include "tests/cpp/support/packets.h"

namespace isthmus::fuzz {

// Ends the process, so that the fuzzer keeps the input, if what must hold does not.
void require(bool condition, const char* what);

// Values of all magnitudes, with zeros, denormals, Inf and NaN among them.
std::vector<float> make_values(int64_t num_elements, uint32_t seed);

// 0 ... most, and most often few, which are fast to work on.
int64_t consume_size(FuzzedDataProvider& provider, int64_t most);

// The identity of a unit, and the step; `sender` is any number.
PacketContext consume_context(FuzzedDataProvider& provider, uint32_t sender = 0);

// Damages `packet` as long as the input lasts: flips bits, changes, moves and clears words, most of them near the
// beginning, where the sections that steer decoding are; or overwrites it with the input itself.
void damage(FuzzedDataProvider& provider, const Packet& packet);

// Whether `decode` accepts; anything but a PacketError gets through and ends the process.
bool accepts(const std::function<void()>& decode);

// A piece, drawn by choices of the input, that a codec encodes and decodes: what was sent is accepted.
struct Coded {
  Coded(HostCodec& its_codec, FuzzedDataProvider& provider);

  // Decodes from zeros.
  bool is_accepted();
  // A packet is accepted if and only if it is what was sent. Then it gets the checksum that fits it.
  void damage_and_reseal(FuzzedDataProvider& provider);

  HostCodec& codec;
  int64_t num_elements;
  uint32_t seed;
  PacketContext context;
  std::vector<float> piece;
  std::vector<float> old_residual;
  std::vector<float> residual;
  std::vector<float> decoded;
  Packet packet;
  std::vector<uint8_t> sent;
};

}  // namespace isthmus::fuzz
