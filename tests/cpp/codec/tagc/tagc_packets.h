// What tests of codec tagc on the CPU share: options and contexts.
#pragma once

#include <string>
#include <vector>

#include "codec/tagc/host.h"
#include "tests/cpp/codec/tagc/tagc_reference.h"
#include "tests/cpp/support/packets.h"

namespace isthmus {

inline constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7, .sender = 5};

struct Level {
  double ratio;
  double sparsity;
};
inline constexpr Level kLevels[] = {{2, .8}, {4, .9}, {10, .9875}};

inline Options options_of(Level level) {
  Options options;
  options.ratio = level.ratio;
  options.sparsity = level.sparsity;
  return options;
}

inline reference::TagcParameters parameters_of(const Options& options, PacketContext context = kContext,
                                               TagcLimits limits = {}) {
  return {options.ratio,     options.sparsity, limits.block_elements, limits.peel_rounds,
          context.unit_hash, context.step,     options.cell_type,     context.sender};
}

inline Options with_cells(Options options, const std::string& cell_type) {
  options.cell_type = cell_type;
  return options;
}

inline const std::string kShortCells[] = {"bf16", "fp16", "int8"};

inline CodecCounts encode(HostCodec& codec, const std::vector<float>& piece, std::vector<float>& residual,
                          Packet& packet) {
  return encode(codec, piece, residual, packet, kContext);
}

inline std::vector<float> decode(HostCodec& codec, Packet& packet, int64_t num_elements) {
  return decode(codec, packet, num_elements, kContext);
}

}  // namespace isthmus
