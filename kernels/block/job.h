// What encodings and decodings on a device share in all codecs: shapes and memory. The host knows all of it before the
// data exist: sizes follow from shapes, and no pass allocates.
#pragma once

#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/device.h"

namespace isthmus::kernels {

// How far apart the pieces of one encoding lie, and what belongs to each.
struct PieceSteps {
  int64_t piece_bytes = 0;
  int64_t residual_elements = 0;
  int64_t packet_bytes = 0;
  int64_t scratch_bytes = 0;
};

// Encodes one piece, or several of one length, each into its own packet. Each codec derives its job, which states the
// alignment of packets. Addresses are those of the first piece; go_to() moves them to another one.
struct EncodeJobBase {
  HeaderWords header;            // all but the checksum
  const DeviceContext* context;  // unit and step; null: those of `header`
  ConstBuffer piece;
  float* residual;  // null: no error feedback
  uint8_t* packet;
  int64_t packet_bytes;
  DeviceCounts* counts;
  Magnitudes* magnitudes;  // shared by all pieces; null: nobody asks how large values are

  int64_t num_pieces;  // how many pieces are encoded
  int64_t left_out;    // place of the piece that is not encoded and has no residual; num_pieces: none
  PieceSteps steps;

  ChecksumParts parts;  // of one packet
  uint32_t* arrived;    // groups that reached the end of the last pass; the first pass calls begin_counting()

  // Where a step is counted when all packets are sealed; null: nowhere. This and `sealed` are shared by all pieces.
  DeviceContext* counted;
  uint32_t* sealed;  // sealed packets; the first pass calls begin_counting()
  bool is_first_piece;

  int64_t last_place() const { return left_out < num_pieces ? num_pieces : num_pieces - 1; }
  // Moves all addresses from the first piece to the i-th encoded one.
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
  // Moves scratch memory of the first piece to the i-th. Null stays null.
  template <typename T>
  ISTHMUS_DEVICE void move(T*& scratch, int64_t i) const {
    scratch = scratch == nullptr ? nullptr
                                 : reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(scratch) + i * steps.scratch_bytes);
  }
};

// Decodes one packet or several, one after another. Without places the result is
//
//   out = scale * (own + all packets, in their order)
//
// summed in float32 (float64 for float64 values). `own` may be `out` if they have the same type.
struct DecodeJobBase {
  HeaderWords header;  // of the first place's packet
  PacketSenders senders;
  const DeviceContext* context;  // unit and step; null: those of `header`
  const uint8_t* packets;
  int64_t packet_bytes;  // of each packet
  int64_t num_packets;   // how many packets are decoded
  int64_t own_place;     // place that is left out, because it is this node's; num_packets: none
  bool to_places;   // packet i replaces the i-th of num_packets equal parts of `out`, float32; own_place is num_packets
  ConstBuffer own;  // without memory if packets go to places: nothing is added to it
  double scale;
  Buffer out;
  Buffer sum;  // float32, for codecs that sum there; perhaps `out`
  DeviceFault* fault;
  DeviceFault* mapped_fault;  // in memory that the host sees; may be null
  DeviceContext* counted;     // where a step is counted at the end; null: nowhere

  DecodeState* state;
  ChecksumParts parts;  // of all places

  // Which packet is decoded as the i-th. Packets are numbered by their places.
  ISTHMUS_DEVICE int64_t place_of(int64_t i) const { return i < own_place ? i : i + 1; }
  int64_t bytes_of_packets() const { return num_packets * packet_bytes; }  // of the decoded packets
  int64_t num_places() const { return own_place < num_packets ? num_packets + 1 : num_packets; }
};

// What a pass moves between memory and the processor: bytes of pieces, residuals, packets, sums and results, without
// headers, counters and parts of checksums.
struct Moved {
  int64_t read = 0;
  int64_t written = 0;
};

inline constexpr int kPassThreads = 256;

// The threads of a pass's groups: kThreads, if it says so.
template <typename Pass>
constexpr int threads_of() {
  if constexpr (requires { Pass::kThreads; }) {
    return Pass::kThreads;
  } else {
    return kPassThreads;
  }
}

// The most shared memory of a group: kMaxSharedBytes, or none.
template <typename Pass>
constexpr int64_t most_shared_bytes() {
  if constexpr (requires { Pass::kMaxSharedBytes; }) {
    return Pass::kMaxSharedBytes;
  } else {
    return 0;
  }
}

// How many groups of a pass must fit on a multiprocessor at once: kResidentGroups, or one. This limits the kernel's
// registers.
template <typename Pass>
constexpr int resident_groups() {
  if constexpr (requires { Pass::kResidentGroups; }) {
    return Pass::kResidentGroups;
  } else {
    return 1;
  }
}

}  // namespace isthmus::kernels
