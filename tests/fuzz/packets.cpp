#include "tests/fuzz/packets.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "isthmus/error.h"
#include "isthmus/packet_header.h"
#include "kernels/checksum/cpu.h"

namespace isthmus::fuzz {
namespace {

constexpr int64_t kSectionBytes = 64;

// A small generator of its own: the same values everywhere.
class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed * 2654435769u + 1) {}

  uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }

 private:
  uint64_t state_;
};

// Where the next damage is done: anywhere, in the header, near the beginning, or at the end.
int64_t choose_byte(FuzzedDataProvider& provider, uint8_t region, int64_t size) {
  const auto place = static_cast<int64_t>(provider.ConsumeIntegral<uint32_t>());
  switch (region % 4) {
    case 0:
      return place % size;
    case 1:
      return place % std::min(size, kSectionBytes);
    case 2:
      return place % std::min(size, 8 * kSectionBytes);
    default:
      return size - 1 - place % std::min(size, kSectionBytes);
  }
}

void overwrite(const std::vector<uint8_t>& bytes, const Packet& packet) {
  std::copy_n(bytes.data(), std::min<size_t>(bytes.size(), packet.bytes), packet.data());
}

}  // namespace

void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
  }
}

std::vector<float> make_values(int64_t num_elements, uint32_t seed) {
  Random random(seed);
  std::vector<float> values(num_elements);
  const bool only_finite = seed % 2 == 0;
  for (float& value : values) {
    const uint32_t kind = random.next() % 64;
    const uint32_t bits = random.next() << 1 ^ random.next();
    if (kind == 0 && !only_finite) {
      value = bits % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
    } else if (kind < 8) {
      value = 0;
    } else if (kind < 12) {
      value = std::bit_cast<float>(bits & 0x807fffffu);  // denormal
    } else {
      value = std::bit_cast<float>((bits & 0x807fffffu) | (100 + bits % 40) << 23);
    }
  }
  return values;
}

int64_t consume_size(FuzzedDataProvider& provider, int64_t most) {
  constexpr int64_t kFew = 300;
  const bool is_many = provider.ConsumeIntegralInRange<int>(0, 7) == 7;
  return provider.ConsumeIntegralInRange<int64_t>(0, is_many ? most : std::min(kFew, most));
}

PacketContext consume_context(FuzzedDataProvider& provider, uint32_t sender) {
  return {.unit_hash = provider.ConsumeIntegral<uint64_t>(),
          .step = provider.ConsumeIntegral<uint16_t>(),
          .sender = static_cast<uint16_t>(sender)};
}

void damage(FuzzedDataProvider& provider, const Packet& packet) {
  constexpr int64_t kWord = 4;
  uint8_t* bytes = packet.data();
  const int64_t last_word = packet.bytes - kWord;
  while (provider.remaining_bytes() > 0) {
    const auto kind = provider.ConsumeIntegral<uint8_t>();
    const int64_t byte = choose_byte(provider, kind >> 4, packet.bytes);
    const int64_t word = std::min(byte / kWord * kWord, last_word);
    switch (kind % 6) {
      case 0:
        bytes[byte] ^= static_cast<uint8_t>(1 << provider.ConsumeIntegral<uint8_t>() % 8);
        break;
      case 1: {
        const auto value = provider.ConsumeIntegral<uint32_t>();
        std::memcpy(bytes + word, &value, kWord);
        break;
      }
      case 2: {
        const int64_t other = static_cast<int64_t>(provider.ConsumeIntegral<uint32_t>()) % packet.bytes;
        std::swap_ranges(bytes + word, bytes + word + kWord, bytes + std::min(other / kWord * kWord, last_word));
        break;
      }
      case 3: {
        const int64_t other = static_cast<int64_t>(provider.ConsumeIntegral<uint32_t>()) % packet.bytes;
        std::memmove(bytes + word, bytes + std::min(other / kWord * kWord, last_word), kWord);
        break;
      }
      case 4:
        std::fill_n(bytes + byte, std::min<int64_t>(packet.bytes - byte, provider.ConsumeIntegral<uint8_t>()), 0);
        break;
      default:
        overwrite(provider.ConsumeRemainingBytes<uint8_t>(), packet);
    }
  }
}

bool accepts(const std::function<void()>& decode) {
  try {
    decode();
    return true;
  } catch (const PacketError&) {
    return false;
  }
}

Coded::Coded(HostCodec& its_codec, FuzzedDataProvider& provider)
    : codec(its_codec),
      num_elements(consume_size(provider, 9000)),
      seed(provider.ConsumeIntegral<uint16_t>()),
      context(consume_context(provider, seed)),
      piece(make_values(num_elements, seed)),
      old_residual(make_values(codec.keeps_residual() ? num_elements : 0, 2 * (seed + 1))),  // residuals are finite
      residual(old_residual),
      packet(new_packet(codec, num_elements)) {
  encode(codec, piece, residual, packet, context);
  sent = packet.copy();
  require(is_accepted(), "what was sent is accepted");
}

bool Coded::is_accepted() {
  decoded.assign(static_cast<size_t>(num_elements), 0);
  return accepts([&] { codec.decode_sum(packet.buffer(), 1, buffer_of(decoded), context, {}); });
}

void Coded::damage_and_reseal(FuzzedDataProvider& provider) {
  damage(provider, packet);
  require(is_accepted() == (packet.copy() == sent), "a packet is accepted if and only if it is what was sent");
  Checksum checksum;
  checksum.add(packet.data() + sizeof(PacketHeader), packet.bytes - static_cast<int64_t>(sizeof(PacketHeader)));
  const uint64_t value = checksum.value();
  std::memcpy(packet.data() + offsetof(PacketHeader, checksum), &value, sizeof(value));
}

}  // namespace isthmus::fuzz
