// Codec `none` on many groups: values are converted, moved and checksummed in one pass, a 64-bit word at a time.
#pragma once

#include <type_traits>

#include "kernels/float_types.h"
#include "kernels/none_job.h"
#include "kernels/packet_passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

inline constexpr int kHeaderBytes = 8 * kHeaderWords;

// The values of one word of a packet.
template <typename Wire>
union WordOf {
  static constexpr int kValues = 8 / sizeof(Wire);
  uint64_t word;
  Wire value[kValues];
};

// value * factor, the product taken in float32 (float64 where either side is float64), then rounded once.
template <typename Out, typename In>
ISTHMUS_DEVICE Out scaled(In value, double factor) {
  using Product = std::conditional_t<std::is_same_v<In, double> || std::is_same_v<Out, double>, double, float>;
  return narrow<Out>(static_cast<Product>(widen(value)) * static_cast<Product>(factor));
}

// Writes the values of a packet, and zeros to its end.
template <typename Piece, typename Wire>
struct EncodeValues {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  NoneEncodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    auto* words = reinterpret_cast<uint64_t*>(job.packet + kHeaderBytes);
    add_checksum(group, (job.packet_bytes - kHeaderBytes) / 8, *job.checksum, [&](int64_t w) {
      const uint64_t word = encode_word(w);
      words[w] = word;
      return word;
    });
  }

 private:
  ISTHMUS_DEVICE uint64_t encode_word(int64_t w) const {
    const auto* piece = static_cast<const Piece*>(job.piece.data);
    constexpr int kValues = WordOf<Wire>::kValues;
    WordOf<Wire> word = {};
    for (int i = 0; i < kValues; ++i) {
      if (w * kValues + i < job.piece.num_elements) {
        word.value[i] = encode_value(piece[w * kValues + i]);
      }
    }
    return word.word;
  }

  ISTHMUS_DEVICE Wire encode_value(Piece value) const {
    if (job.divisor != 1) {
      return scaled<Wire>(value, 1.0 / job.divisor);
    }
    if constexpr (std::is_same_v<Piece, Wire>) {
      return value;  // the very bits
    } else {
      return narrow<Wire>(widen(value));
    }
  }
};

// out += the values of each packet, in the order of the packets. Nothing after a fault.
template <typename Wire, typename Sum>
struct DecodeValues {
  static constexpr int kThreads = kPassThreads;
  static constexpr int64_t kMaxSharedBytes = 0;

  NoneDecodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (job.fault->reported != 0) {
      return;
    }
    // A word is of the same thread in every packet: so an element's sums keep their order.
    for (int64_t packet = 0; packet < job.num_packets; ++packet) {
      const auto* words = reinterpret_cast<const uint64_t*>(job.packets + packet * job.packet_bytes + kHeaderBytes);
      add_checksum(group, (job.packet_bytes - kHeaderBytes) / 8, job.checksums[packet], [&](int64_t w) {
        add_word(w, words[w]);
        return words[w];
      });
    }
  }

 private:
  ISTHMUS_DEVICE void add_word(int64_t w, uint64_t bits) const {
    auto* out = static_cast<Sum*>(job.out.data);
    constexpr int kValues = WordOf<Wire>::kValues;
    WordOf<Wire> word;
    word.word = bits;
    for (int i = 0; i < kValues; ++i) {
      if (w * kValues + i < job.out.num_elements) {
        out[w * kValues + i] += decode_value(word.value[i]);
      }
    }
  }

  ISTHMUS_DEVICE Sum decode_value(Wire value) const {
    return job.divisor == 1 ? static_cast<Sum>(widen(value)) : static_cast<Sum>(scaled<float>(value, job.divisor));
  }
};

// A group a packet.
struct CheckHeaders {
  static constexpr int kThreads = 32;
  static constexpr int64_t kMaxSharedBytes = 0;

  NoneDecodeJob job;

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (job.fault->reported != 0) {
      return;
    }
    for_each_by_group(group, job.num_packets, [&](int64_t packet) {
      check_header(group, job.packets + packet * job.packet_bytes, in_context(job.header, *job.context),
                   job.checksums[packet], packet, job.fault, job.state);
    });
  }
};

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
