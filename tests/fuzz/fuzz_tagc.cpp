// Packets of codec tagc: a packet is accepted if and only if it is what was sent, and then packet and residual together
// are what went in. One that was made up, with a checksum that fits, does no harm.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/tagc/host.h"
#include "kernels/tagc/settings.h"
#include "tests/fuzz/packets.h"

using namespace isthmus;
using namespace isthmus::fuzz;

namespace {

void choose(FuzzedDataProvider& provider, Options& options, TagcLimits& limits) {
  constexpr int64_t kBlockElements[] = {0, 64, 128, 256, 4096};
  constexpr double kSparsity[] = {0.9875, 0.9, 0.5, 0};
  limits.block_elements = provider.PickValueInArray(kBlockElements);
  options.ratio = static_cast<double>(provider.ConsumeIntegralInRange<int64_t>(1, 64));
  options.sparsity = provider.PickValueInArray(kSparsity);
  limits.peel_rounds = provider.ConsumeIntegralInRange<int64_t>(1, 64);
}

// Each block's elements are in packet or residual, whole; a block with NaN or Inf sent NaN for these and kept the rest.
void check_conservation(const std::vector<float>& piece, const std::vector<float>& old_residual,
                        const std::vector<float>& residual, const std::vector<float>& decoded, int64_t block_elements) {
  const auto num_elements = static_cast<int64_t>(piece.size());
  for (int64_t begin = 0; begin < num_elements; begin += block_elements) {
    const int64_t end = std::min(begin + block_elements, num_elements);
    bool all_finite = true;
    for (int64_t i = begin; i < end; ++i) {
      all_finite = all_finite && std::isfinite(piece[i] + old_residual[i]);
    }
    for (int64_t i = begin; i < end; ++i) {
      const float sum = piece[i] + old_residual[i];
      if (all_finite) {
        require((decoded[i] == sum && residual[i] == 0) || (decoded[i] == 0 && residual[i] == sum),
                "packet and residual are what went in");
      } else {
        require(residual[i] == old_residual[i] && std::isnan(decoded[i]) == !std::isfinite(sum),
                "a block that is not finite says so and keeps its residual");
      }
    }
  }
}

// Changes an element's value in all three cells, as nobody would by chance: only the checksum tells.
void forge(FuzzedDataProvider& provider, const kernels::TagcShape& shape, PacketContext context, const Packet& packet) {
  if (shape.num_blocks == 0) {
    return;
  }
  TagcScratch scratch;
  const int64_t element = static_cast<int64_t>(provider.ConsumeIntegral<uint32_t>()) % shape.num_elements;
  const auto change = provider.ConsumeIntegral<uint32_t>();
  const auto& rows = scratch.hash(shape, context)[element / shape.block_elements];
  uint8_t* sketch = packet.data() + packet.bytes - 4 * shape.num_cells();
  for (const uint32_t row : rows.row) {
    uint8_t* cell = sketch + 4 * (row * shape.block_elements + element % shape.block_elements);
    uint32_t bits = 0;
    std::memcpy(&bits, cell, 4);
    bits ^= change;
    std::memcpy(cell, &bits, 4);
  }
}

// Whatever the cells held, nothing arrived but where the index says.
void check_only_marked(const kernels::TagcShape& shape, const Packet& packet, const std::vector<float>& decoded) {
  constexpr int64_t kSectionBytes = 64;
  const int64_t index_bytes = (8 * shape.index_words() + kSectionBytes - 1) / kSectionBytes * kSectionBytes;
  const uint8_t* index = packet.data() + packet.bytes - 4 * shape.num_cells() - index_bytes;
  for (int64_t i = 0; i < shape.num_elements; ++i) {
    require(decoded[i] == 0 || (index[i / 8] >> i % 8 & 1) != 0, "only marked elements arrive");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider provider(data, size);
  Options options;
  TagcLimits limits;
  choose(provider, options, limits);
  const bool forged = provider.ConsumeIntegralInRange<int64_t>(0, 3) == 1;

  TagcCodec codec(options, limits);
  Coded coded(codec, provider);
  const kernels::TagcShape shape = TagcSettings(options, limits).shape(coded.num_elements);
  check_conservation(coded.piece, coded.old_residual, coded.residual, coded.decoded, shape.block_elements);
  if (forged) {
    forge(provider, shape, coded.context, coded.packet);
  }
  coded.damage_and_reseal(provider);
  if (coded.is_accepted()) {
    check_only_marked(shape, coded.packet, coded.decoded);
  }
  return 0;
}
