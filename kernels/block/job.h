// The part of an encoding and a decoding on a device that all codecs share: shapes and memory. The host knows all of it
// before the data exist: sizes follow from the shape alone, and no pass allocates.
#pragma once

#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/device.h"

namespace isthmus::kernels {

// How far the pieces of one encoding, and what belongs to each, lie from each other.
struct PieceSteps {
  int64_t piece_bytes = 0;
  int64_t residual_elements = 0;
  int64_t packet_bytes = 0;
  int64_t scratch_bytes = 0;
};

// The encoding of one piece, or of several of one length, each into a packet of its own. Each codec derives its own
// job, which states the alignment of packets. Addresses are those of the first piece; go_to() moves them to another.
struct EncodeJobBase {
  HeaderWords header;            // all but the checksum
  const DeviceContext* context;  // unit and step; null: those of `header`
  ConstBuffer piece;
  float* residual;  // null: no error feedback
  uint8_t* packet;
  int64_t packet_bytes;
  DeviceCounts* counts;

  int64_t num_pieces;  // that are encoded
  int64_t left_out;    // the place of one that is not, and has no residual; num_pieces: there is none
  PieceSteps steps;

  ChecksumParts parts;  // of one packet
  uint32_t* arrived;    // groups at the end of the last pass; the first pass calls begin_counting()

  // Where a step is counted when all packets are sealed; null: nowhere. Neither is of one piece.
  DeviceContext* counted;
  uint32_t* sealed;  // packets; the first pass calls begin_counting()
  bool is_first_piece;

  int64_t last_place() const { return left_out < num_pieces ? num_pieces : num_pieces - 1; }
  // From the first piece to the i-th that is encoded.
  ISTHMUS_DEVICE void go_to(int64_t i) {
    const int64_t place = i < left_out ? i : i + 1;
    is_first_piece = i == 0;
    piece.data = static_cast<const uint8_t*>(piece.data) + place * steps.piece_bytes;
    packet += place * steps.packet_bytes;
    residual = residual == nullptr ? nullptr : residual + i * steps.residual_elements;
    move(parts.words, i);
    move(arrived, i);
  }

 protected:
  // Scratch memory of the first piece becomes that of the i-th. Null stays null.
  template <typename T>
  ISTHMUS_DEVICE void move(T*& scratch, int64_t i) const {
    scratch = scratch == nullptr ? nullptr
                                 : reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(scratch) + i * steps.scratch_bytes);
  }
};

// One decoding of one packet or of several, one after another. Without places the result is
//
//   out = scale * (own + all packets, in their order)
//
// summed in float32 (float64 where values are that); `own` may be `out`, if the types are one.
struct DecodeJobBase {
  HeaderWords header;  // of the first place's packet
  PacketSenders senders;
  const DeviceContext* context;  // unit and step; null: those of `header`
  const uint8_t* packets;
  int64_t packet_bytes;  // of each
  int64_t num_packets;   // that are decoded
  int64_t own_place;     // among the packets, which is left out; num_packets: there is none
  bool to_places;   // packet i replaces the i-th of num_packets equal parts of `out`, float32; own_place is num_packets
  ConstBuffer own;  // no memory where packets go to places: nothing is added to
  double scale;
  Buffer out;
  Buffer sum;  // float32, for codecs that sum there; perhaps `out`
  DeviceFault* fault;
  DeviceFault* mapped_fault;  // where the host sees it, too; may be null
  DeviceContext* counted;     // where a step is counted at the end; null: nowhere

  DecodeState* state;
  ChecksumParts parts;  // of all places

  // Which packet is the i-th to be decoded. Packets are numbered by their places.
  ISTHMUS_DEVICE int64_t place_of(int64_t i) const { return i < own_place ? i : i + 1; }
  int64_t bytes_of_packets() const { return num_packets * packet_bytes; }  // that are decoded
  int64_t num_places() const { return own_place < num_packets ? num_packets + 1 : num_packets; }
};

}  // namespace isthmus::kernels
