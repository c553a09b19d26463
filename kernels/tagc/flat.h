// The single-tier algorithm of the TAGC paper, as a baseline: collectives over all ranks merge their supports in one
// index and one sketch, and the owner decodes the sum. See docs/tagc.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "codec/gpu_device.h"
#include "isthmus/codec.h"
#include "isthmus/device.h"
#include "kernels/tagc/device.h"
#include "kernels/tagc/settings.h"

namespace isthmus {

// What one rank encodes: a chunk for each owner, equally long, one after another; and where to.
struct FlatChunks {
  int num_chunks;
  ConstBuffer gradient;  // float32, or a 16-bit type, which is encoded as if widened
  Buffer residuals;      // float32, as the gradient; updated in place
  Buffer indexes;        // kByte, index_bytes() of each chunk; overwritten
  Buffer sketches;       // float32, sketch_elements() of each chunk; overwritten

  int64_t chunk_elements() const { return gradient.num_elements / num_chunks; }
};

// Its only state is its settings and scratch memory, so each thread needs its own object. Its output has no header,
// because reductions merge index and sketch. Ranks must agree on options, sizes and PacketContext. A GPU's gives the
// bits of the CPU's, except for which NaN a cell is; it counts on the device, and no graph can capture it: the seed of
// each step is part of what is enqueued.
class TagcFlat {
 public:
  // Uses ratio and sparsity. Throws OptionError if one is out of its range, or if error_feedback is off.
  TagcFlat(const Options& options, TagcLimits limits) : settings_(options, limits) {}
  virtual ~TagcFlat() = default;

  // The sizes of one shard's index and sketch (float32 elements). Both are multiples of 8 bytes.
  int64_t index_bytes(int64_t shard_elements) const;
  int64_t sketch_elements(int64_t shard_elements) const;

  // What a Workspace must hold.
  virtual int64_t encode_scratch_bytes(const FlatChunks& chunks) const = 0;
  virtual int64_t decode_scratch_bytes(int64_t shard_elements) const = 0;

  virtual CodecCounts encode(const FlatChunks& chunks, PacketContext context, Workspace workspace) = 0;

  // Merges the index of one shard with that of other ranks, by bitwise or. Sketches are summed.
  virtual void merge(ConstBuffer arrived, Buffer index, Stream stream) = 0;

  // Decodes the merged index and the summed sketch of this rank's shard into `out` (float32, overwritten), and consumes
  // the sketch. Elements that do not peel are estimated and counted. An element that was NaN or Inf on any rank is NaN.
  virtual CodecCounts decode(ConstBuffer merged_index, Buffer summed_sketch, Buffer out, PacketContext context,
                             Workspace workspace) = 0;

 protected:
  // Throw Error for wrong types and sizes.
  void check(const FlatChunks& chunks) const;
  void check(ConstBuffer merged_index, ConstBuffer summed_sketch, ConstBuffer out) const;

  TagcSettings settings_;
};

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

  const TagcMaker choosing_;  // which elements are sent
  const PassesOfDevice device_;
};

std::unique_ptr<TagcFlat> make_tagc_flat(const Options& options, Device& device);

}  // namespace isthmus
