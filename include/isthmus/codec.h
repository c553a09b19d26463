// A codec turns a piece into a packet of fixed size, and sums packets back. docs/packet_format.md describes the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "isthmus/buffer.h"
#include "isthmus/device_context.h"
#include "isthmus/options.h"

namespace isthmus {

// Identifies packets. The sender writes it into the header, and the receiver compares it. Where several packets lie one
// after another, packet p comes from node sender + p / packets_of_sender.
struct PacketContext {
  uint64_t unit_hash = 0;
  uint64_t step = 0;
  uint8_t segment = 0;  // which part of a piece the packet holds
  uint16_t sender = 0;  // number of the node that encodes the packet: its place on its rail, not a rank
  int packets_of_sender = 1;
  // A GPU's codecs read unit and step there. Codec `none` may have null instead: it then uses the values above, also at
  // each replay of a graph.
  const DeviceContext* on_device = nullptr;
  DeviceContext* counted = nullptr;  // encode_pieces() and decode_shard() on a GPU end by counting a step there
  Magnitudes* magnitudes = nullptr;  // to which codecs with a residual show how large values are; null: to none

  PacketContext of_packet(int p) const;
};

// One segment of the pieces of a reduction. They become packets for other nodes.
struct PieceSet {
  ConstBuffer pieces = {};  // all elements of all pieces, by node
  Buffer residuals = {};    // whole, by node, for the encoded pieces only; empty without error feedback
  Buffer packets = {};      // by node
  int num_nodes = 1;
  int left_out = 1;   // node whose piece is not encoded: this node, whose piece crosses no link; num_nodes: none
  int64_t begin = 0;  // start of the segment, in elements of a piece
  int64_t num_elements = 0;

  // The set that encodes one whole piece.
  static PieceSet of_one(ConstBuffer piece, Buffer residual, Buffer packet) {
    return {.pieces = piece, .residuals = residual, .packets = packet, .num_elements = piece.num_elements};
  }

  int num_encoded() const { return left_out < num_nodes ? num_nodes - 1 : num_nodes; }
  int encoded_node(int i) const { return i < left_out ? i : i + 1; }  // node of the i-th encoded piece
  int64_t piece_elements() const { return pieces.num_elements / num_nodes; }
  int64_t packet_bytes() const { return packets.num_elements / num_nodes; }
  ConstBuffer piece(int i) const { return part_of(pieces, encoded_node(i)); }
  Buffer residual(int i) const { return residuals.num_elements == 0 ? residuals : part_of(residuals, i); }
  Buffer packet(int i) const { return packets.part(encoded_node(i), packet_bytes()); }

 private:
  template <typename AnyBuffer>
  AnyBuffer part_of(AnyBuffer whole, int i) const {
    return whole.part(i, piece_elements()).slice(begin, num_elements);
  }
};

// The summands of a segment of a shard: this node's own piece, and the other nodes' packets. The sum is taken in
// float32 (float64 for a float64 shard), the own piece first, then the packets by node. It is multiplied by `scale` and
// rounded once to the shard's type.
struct ShardSum {
  ConstBuffer own;      // of the shard's type, or of the type that accumulates it
  ConstBuffer packets;  // by node
  int num_nodes = 1;
  int node = 0;  // this node; the packet in its place is ignored
  double scale = 1;
  Buffer shard;

  int num_packets() const { return num_nodes - 1; }
  int64_t packet_bytes() const { return packets.num_elements / num_nodes; }
};

// The stream and the scratch memory for one call of a GPU's codec.
struct Workspace {
  Stream stream;
  Buffer scratch;  // bytes; their contents do not matter
};

// Counts of encoding and decoding, for Stats. Elements are counted over all pieces.
struct CodecCounts {
  int64_t encoded_elements = 0;
  int64_t kept_elements = 0;       // chosen by the sparsity threshold and sent
  int64_t held_back_elements = 0;  // chosen, but would not peel: they stay in the residual (two tiers)
  int64_t estimated_elements = 0;  // did not peel, so that the receiver estimates them (flat)
  int64_t non_finite_blocks = 0;   // blocks with NaN or Inf, whose residual stays as it was
  int64_t spikes = 0;              // residuals that Device::drop_residual_after_spike() dropped

  CodecCounts& operator+=(const CodecCounts& other);
};

// A codec's only state is its settings: residual and step belong to the unit, and callers pass them in. A codec owns
// scratch memory, so each thread needs its own codec.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual const char* name() const = 0;

  // The size of the packet for a piece of `num_elements`, a multiple of 8; ranks with equal options get the same size.
  virtual int64_t packet_bytes(int64_t num_elements) const = 0;

  // Whether encoding uses a residual (error feedback).
  virtual bool keeps_residual() const = 0;

  // Bytes of scratch memory that the calls below need. They depend on sizes and types only.
  virtual int64_t encode_scratch_bytes(const PieceSet& set) const = 0;
  virtual int64_t decode_scratch_bytes(const ShardSum& sum) const = 0;
  virtual int64_t decode_each_scratch_bytes(int64_t num_elements, int num_packets) const = 0;

  // Encodes each piece that is not left out into its packet (packet_bytes, 64-byte aligned). Pieces are float32;
  // float64 only with codec `none`; see also Device::piece_dtype. Residuals are float32 and updated in place; they are
  // empty if !keeps_residual(). Afterwards decoded packet + new residual = piece + old residual, in the sense of
  // docs/tagc.md. In a block with NaN or Inf the packet decodes to NaN at those elements, and the block's residual
  // stays as it was.
  virtual CodecCounts encode_pieces(const PieceSet& set, PacketContext context, Workspace workspace) = 0;

  // Writes the segment of the shard; the context's sender is 0. If a header does not match `context` and the settings,
  // or a packet does not decode, it throws PacketError that names both sides, and the shard is unspecified. A GPU's
  // codec reports this to its Device instead.
  virtual CodecCounts decode_shard(const ShardSum& sum, PacketContext context, Workspace workspace) = 0;

  // Packet i replaces the i-th of num_packets equal parts of `out`, as if added to zeros. Errors are those of
  // decode_shard().
  virtual CodecCounts decode_each(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                                  Workspace workspace) = 0;
};

// A codec on the CPU, which handles pieces and packets one after another.
class HostCodec : public Codec {
 public:
  int64_t encode_scratch_bytes(const PieceSet& /*set*/) const final { return 0; }
  int64_t decode_scratch_bytes(const ShardSum& sum) const final;
  int64_t decode_each_scratch_bytes(int64_t /*num_elements*/, int /*num_packets*/) const final { return 0; }
  CodecCounts encode_pieces(const PieceSet& set, PacketContext context, Workspace workspace) final;
  CodecCounts decode_shard(const ShardSum& sum, PacketContext context, Workspace workspace) final;
  CodecCounts decode_each(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                          Workspace workspace) final;

  // encode_pieces() for one piece.
  virtual CodecCounts encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context,
                             Workspace workspace) = 0;

  // Adds `num_packets` packets, which lie one after another, to `out` in that order. `out` is float32, or has the
  // piece's type. Errors are those of decode_shard().
  virtual CodecCounts decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                                 Workspace workspace) = 0;

  // decode_each() for one packet. This one clears `out` and calls decode_sum().
  virtual CodecCounts decode(ConstBuffer packet, Buffer out, PacketContext context, Workspace workspace);
};

// Makes the CPU codec that `options` name. wire_dtype: the type of the reduced tensor, in which codec `none` sends
// values. ranks_per_node: how many values each piece element sums; codec `none` divides float16 by it, so that no
// partial sum overflows. Throws OptionError for an unknown name.
std::unique_ptr<HostCodec> make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                      int ranks_per_node);

}  // namespace isthmus
