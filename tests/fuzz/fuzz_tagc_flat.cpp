// Index and sketch of flat tagc, which carry no header: whatever arrives, decoding ends and stays inside its memory.

#include "kernels/tagc/flat.h"
#include "tests/fuzz/packets.h"

using namespace isthmus;
using namespace isthmus::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kBlockElements[] = {0, 64, 128, 256, 4096};
  constexpr int64_t kMostElements = 9000;
  FuzzedDataProvider provider(data, size);
  Options options;
  TagcLimits limits;
  options.tiers = TierMode::kFlat;
  limits.block_elements = provider.PickValueInArray(kBlockElements);
  options.ratio = static_cast<double>(provider.ConsumeIntegralInRange<int64_t>(1, 64));
  limits.peel_rounds = provider.ConsumeIntegralInRange<int64_t>(1, 64);
  const int64_t num_elements = consume_size(provider, kMostElements);
  const uint32_t seed = provider.ConsumeIntegral<uint16_t>();
  const PacketContext context = consume_context(provider);

  TagcFlatOnHost codec(options, limits);
  std::vector<float> residual = make_values(num_elements, 2 * (seed + 1));
  const Packet index(codec.index_bytes(num_elements));
  const int64_t sketch_elements = codec.sketch_elements(num_elements);
  const Packet sketch(4 * sketch_elements);
  const Buffer cells{sketch.data(), sketch_elements, DataType::kFloat32};
  const std::vector<float> chunk = make_values(num_elements, seed);
  codec.encode({1, buffer_of(chunk), buffer_of(residual), index.buffer(), cells}, context, {});

  if (num_elements > 0) {
    FuzzedDataProvider for_index(data, size / 2);
    damage(for_index, index);
    damage(provider, sketch);
  }
  std::vector<float> decoded(num_elements);
  const CodecCounts counts = codec.decode(index.buffer(), cells, buffer_of(decoded), context, {});
  require(counts.estimated_elements >= 0 && counts.estimated_elements <= num_elements, "counts stay in their range");
  return 0;
}
