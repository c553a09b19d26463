// The single-tier algorithm of the TAGC paper, as a baseline: supports of all ranks are merged in one index and one
// sketch by collectives over all ranks, and the owner decodes the sum. See docs/tagc.md.
#pragma once

#include <cstdint>
#include <memory>

#include "codec/tagc/settings.h"
#include "isthmus/codec.h"
#include "isthmus/transport.h"

namespace isthmus {

// Stateless except for its settings and scratch memory: one object a thread. Its output has no header, because index
// and sketch pass through reductions. Ranks must agree on options, sizes and PacketContext.
class TagcFlat {
 public:
  // Uses ratio, sparsity and index_bits. Throws OptionError if one of them is out of its range; if index_bits is 4 and
  // world_size is above 15 (the counts would overflow); if error_feedback is off; and for options that the single-tier
  // form does not support: cells other than fp32 (sums are merged in them), rows by load.
  TagcFlat(const Options& options, int world_size, TagcLimits limits = {});
  ~TagcFlat();

  // Sizes of one chunk's index and sketch (float32 elements), for one owner's shard. Multiples of 8 bytes.
  int64_t index_bytes(int64_t shard_elements) const;
  int64_t sketch_elements(int64_t shard_elements) const;

  // Encodes one chunk (float32, one owner's shard) of this rank. index (kByte, index_bytes) and sketch (float32,
  // sketch_elements) are overwritten; residual (float32, as the chunk) is updated in place.
  CodecCounts encode(ConstBuffer chunk, Buffer residual, Buffer index, Buffer sketch, PacketContext context);

  // How indexes are all-reduced: 1 bit by kBitOr, 4 bits by kSum of bytes that hold two counts. Sketches are summed.
  ReduceOp index_op() const;

  // Decodes the merged index and the summed sketch of this rank's own shard into `out` (float32, overwritten). The
  // sketch is consumed. What does not peel is estimated and counted. An element that was NaN or Inf on any rank is NaN.
  CodecCounts decode(ConstBuffer merged_index, Buffer summed_sketch, Buffer out, PacketContext context);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace isthmus
