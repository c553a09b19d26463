// Turns a piece into a packet of fixed size and sums packets back. See docs/packet_format.md for the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "isthmus/buffer.h"
#include "isthmus/device_context.h"
#include "isthmus/options.h"

namespace isthmus {

// Whose packets these are. Written into the header by the sender, compared by the receiver. With several packets, one
// after another, packet p is that of node sender + p / packets_of_sender.
struct PacketContext {
  uint64_t unit_hash = 0;
  uint64_t step = 0;
  uint8_t segment = 0;  // which part of a piece the packet holds
  uint16_t sender = 0;  // the number of the node that encodes it: its place on its rail, not a rank
  int packets_of_sender = 1;
  // Codecs of a GPU read unit and step there. Null, for codec `none` alone: they are the above, at each replay of a
  // graph.
  const DeviceContext* on_device = nullptr;
  DeviceContext* counted = nullptr;  // encode_pieces() and decode_shard() of a GPU count a step there at their end

  // The context of packet p alone.
  PacketContext of_packet(int p) const;
};

// One segment of the pieces of a reduction, which become packets for other nodes.
struct PieceSet {
  ConstBuffer pieces = {};  // whole, by node
  Buffer residuals = {};    // whole, of the nodes whose pieces are encoded, by node; empty without error feedback
  Buffer packets = {};      // by node
  int num_nodes = 1;
  int left_out = 1;   // the node whose piece is not encoded: this one's, which crosses no link; num_nodes: none
  int64_t begin = 0;  // of the segment, in elements of a piece
  int64_t num_elements = 0;

  // One piece that is encoded whole.
  static PieceSet of_one(ConstBuffer piece, Buffer residual, Buffer packet) {
    return {.pieces = piece, .residuals = residual, .packets = packet, .num_elements = piece.num_elements};
  }

  int num_encoded() const { return left_out < num_nodes ? num_nodes - 1 : num_nodes; }
  int encoded_node(int i) const { return i < left_out ? i : i + 1; }  // the i-th that is encoded
  int64_t piece_elements() const { return pieces.num_elements / num_nodes; }
  int64_t packet_bytes() const { return packets.num_elements / num_nodes; }
  // What belongs to the i-th piece that is encoded.
  ConstBuffer piece(int i) const { return part_of(pieces, encoded_node(i)); }
  Buffer residual(int i) const { return residuals.num_elements == 0 ? residuals : part_of(residuals, i); }
  Buffer packet(int i) const { return packets.part(encoded_node(i), packet_bytes()); }

 private:
  template <typename AnyBuffer>
  AnyBuffer part_of(AnyBuffer whole, int i) const {
    return whole.part(i, piece_elements()).slice(begin, num_elements);
  }
};

// What a segment of a shard is the sum of: this node's own piece, and packets of the other nodes. Summed in float32
// (float64 where the shard is of that), the own piece first, then the packets by node; the sum is multiplied by
// `scale`, and rounded once to the shard's type.
struct ShardSum {
  ConstBuffer own;      // of the shard's type, or of the one that accumulates it
  ConstBuffer packets;  // by node
  int num_nodes = 1;
  int node = 0;  // this one: its place among the packets is unspecified
  double scale = 1;
  Buffer shard;

  int num_packets() const { return num_nodes - 1; }
  int64_t packet_bytes() const { return packets.num_elements / num_nodes; }
};

// The stream and the scratch memory of a GPU's codec.
struct Workspace {
  Stream stream;
  Buffer scratch;  // bytes; contents do not matter
};

// Counts of encoding and decoding, for Stats. Elements are counted over all pieces.
struct CodecCounts {
  int64_t encoded_elements = 0;
  int64_t kept_elements = 0;       // chosen by the sparsity threshold and sent
  int64_t held_back_elements = 0;  // chosen, but would not peel: left in the residual (two tiers)
  int64_t estimated_elements = 0;  // did not peel and was estimated by the receiver (flat)
  int64_t non_finite_blocks = 0;   // blocks that held NaN or Inf: their residual was left as it was

  CodecCounts& operator+=(const CodecCounts& other);
};

// Stateless except for its settings: state (residual, step) belongs to the unit and is passed in. A codec keeps scratch
// memory, so each thread needs an object of its own.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual const char* name() const = 0;

  // The size of the packet of a piece of `num_elements`; equal on all ranks with equal options. A multiple of 8.
  virtual int64_t packet_bytes(int64_t num_elements) const = 0;

  // Whether encoding uses a residual (error feedback).
  virtual bool keeps_residual() const = 0;

  // Bytes of scratch memory for the calls below. They look at sizes and types alone.
  virtual int64_t encode_scratch_bytes(const PieceSet& set) const = 0;
  virtual int64_t decode_scratch_bytes(const ShardSum& sum) const = 0;
  virtual int64_t decode_each_scratch_bytes(int64_t num_elements, int num_packets) const = 0;

  // Encodes each piece that is not left out (float32; float64 only with codec `none`; see also Device::piece_dtype)
  // into its packet (packet_bytes, 64-byte aligned). residuals: float32, updated in place; empty if !keeps_residual().
  // After the call: decoded packet + new residual = piece + old residual, in the sense of docs/tagc.md. Blocks with NaN
  // or Inf: the decoded packet is NaN at those elements, the block's residual stays as it was.
  virtual CodecCounts encode_pieces(const PieceSet& set, PacketContext context, Workspace workspace) = 0;

  // Writes the segment of the shard. The context's sender is 0. Throws PacketError, naming both sides, if a header does
  // not match `context` and the settings, or if a packet does not decode; the shard is then unspecified. Codecs of a
  // GPU report it to their Device.
  virtual CodecCounts decode_shard(const ShardSum& sum, PacketContext context, Workspace workspace) = 0;

  // Packet i replaces the i-th of num_packets equal parts of `out`, as if it were added to zeros. Fails likewise.
  virtual CodecCounts decode_each(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                                  Workspace workspace) = 0;
};

// A codec of the CPU, which takes pieces and packets one after the other.
class HostCodec : public Codec {
 public:
  int64_t encode_scratch_bytes(const PieceSet& /*set*/) const final { return 0; }
  int64_t decode_scratch_bytes(const ShardSum& sum) const final;
  int64_t decode_each_scratch_bytes(int64_t /*num_elements*/, int /*num_packets*/) const final { return 0; }
  CodecCounts encode_pieces(const PieceSet& set, PacketContext context, Workspace workspace) final;
  CodecCounts decode_shard(const ShardSum& sum, PacketContext context, Workspace workspace) final;
  CodecCounts decode_each(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                          Workspace workspace) final;

  // As encode_pieces(), of one piece.
  virtual CodecCounts encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context,
                             Workspace workspace) = 0;

  // out += decoded packet, for each of `num_packets` packets that lie one after another, in that order. out: float32
  // (or as the piece). Fails as decode_shard() does.
  virtual CodecCounts decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                                 Workspace workspace) = 0;
};

// The codec that `options` name, for the CPU. wire_dtype: the type of the tensor that is reduced, in which codec `none`
// sends values. ranks_per_node: how many values one piece element sums (codec `none` with float16 divides by it, so
// that no partial sum overflows). Throws OptionError for an unknown name.
std::unique_ptr<HostCodec> make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                      int ranks_per_node);

}  // namespace isthmus
