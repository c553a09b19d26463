// The single-tier form of `tagc` on the CPU, and on a device.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/gpu_device.h"
#include "codec/tagc/device.h"
#include "codec/tagc/flat.h"

namespace isthmus {

class TagcFlatOnHost final : public TagcFlat {
 public:
  explicit TagcFlatOnHost(const Options& options, TagcLimits limits = {}) : TagcFlat(options, limits) {}

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

// The host's part; the device's is in kernels/tagc/flat_passes.h. Indexes, sketches and scratch memory begin at
// multiples of 64 bytes.
class TagcFlatOnDevice final : public TagcFlat {
 public:
  TagcFlatOnDevice(const Options& options, const PassesOfDevice& device, TagcLimits limits = {})
      : TagcFlat(options, limits), choosing_(options, limits), device_(device) {}

  int64_t encode_scratch_bytes(const FlatChunks& chunks) const override;
  int64_t decode_scratch_bytes(int64_t shard_elements) const override;
  CodecCounts encode(const FlatChunks& chunks, PacketContext context, Workspace workspace) override;
  void merge(ConstBuffer arrived, Buffer index, Stream stream) override;
  CodecCounts decode(ConstBuffer merged_index, Buffer summed_sketch, Buffer out, PacketContext context,
                     Workspace workspace) override;

 private:
  // Each plans all but the caller's arrays, which the second argument's memory holds; scratch_bytes: what it holds.
  kernels::TagcFlatEncodeJob plan_encode(int64_t chunk_elements, PacketContext context, void* scratch,
                                         int64_t& scratch_bytes) const;
  kernels::TagcFlatDecodeJob plan_decode(int64_t shard_elements, void* scratch, int64_t& scratch_bytes) const;

  const TagcDevice choosing_;  // which elements are sent
  const PassesOfDevice device_;
};

}  // namespace isthmus
