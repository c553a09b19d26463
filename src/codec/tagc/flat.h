// The single-tier algorithm of the TAGC paper, as a baseline: collectives over all ranks merge their supports in one
// index and one sketch, and the owner decodes the sum. See docs/tagc.md.
#pragma once

#include <cstdint>

#include "codec/tagc/settings.h"
#include "isthmus/codec.h"
#include "isthmus/transport.h"

namespace isthmus {

// Its only state is its settings and scratch memory, so each thread needs its own object. Its output has no header,
// because reductions merge index and sketch. Ranks must agree on options, sizes and PacketContext.
class TagcFlat {
 public:
  // Uses ratio, sparsity and index_bits. Throws OptionError if one is out of its range, if index_bits is 4 with more
  // than 15 ranks (counts would overflow), if error_feedback is off, and for what a single tier does not support: cells
  // other than fp32, which alone can be summed, and rows by load.
  TagcFlat(const Options& options, int world_size, TagcLimits limits = {});

  // The sizes of one shard's index and sketch (float32 elements). Both are multiples of 8 bytes.
  int64_t index_bytes(int64_t shard_elements) const;
  int64_t sketch_elements(int64_t shard_elements) const;

  // Encodes one chunk (float32, one owner's shard) of this rank. index (kByte, index_bytes) and sketch (float32,
  // sketch_elements) are overwritten; residual (float32, as the chunk) is updated in place.
  CodecCounts encode(ConstBuffer chunk, Buffer residual, Buffer index, Buffer sketch, PacketContext context);

  // How indexes are all-reduced: 1 bit by kBitOr, 4 bits by kSum of bytes with two counts each. Sketches are summed.
  ReduceOp index_op() const;

  // Decodes the merged index and the summed sketch of this rank's shard into `out` (float32, overwritten), and consumes
  // the sketch. Elements that do not peel are estimated and counted. An element that was NaN or Inf on any rank is NaN.
  CodecCounts decode(ConstBuffer merged_index, Buffer summed_sketch, Buffer out, PacketContext context);

 private:
  TagcSettings settings_;
  int64_t index_bits_;
  TagcScratch scratch_;
};

}  // namespace isthmus
