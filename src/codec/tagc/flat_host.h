// The single-tier form of `tagc` on the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/tagc/flat.h"

namespace isthmus {

class TagcFlatOnHost final : public TagcFlat {
 public:
  TagcFlatOnHost(const Options& options, int world_size, TagcLimits limits = {})
      : TagcFlat(options, world_size, limits) {}

  int64_t encode_scratch_bytes(const FlatChunks& /*chunks*/) const override { return 0; }
  int64_t decode_scratch_bytes(int64_t /*shard_elements*/) const override { return 0; }
  CodecCounts encode(const FlatChunks& chunks, PacketContext context, Workspace workspace) override;
  void merge(ConstBuffer arrived, Buffer index, Stream stream) override;
  CodecCounts decode(ConstBuffer merged_index, Buffer summed_sketch, Buffer out, PacketContext context,
                     Workspace workspace) override;

 private:
  CodecCounts encode_chunk(ConstBuffer chunk, Buffer residual, Buffer index, Buffer sketch,
                           const PacketContext& context);

  TagcScratch scratch_;
  std::vector<float> widened_;
};

}  // namespace isthmus
