// The arguments from which codecs of a device make jobs. All memory is the device's.
#pragma once

#include <cstdint>
#include <optional>

#include "isthmus/codec.h"
#include "isthmus/error.h"
#include "kernels/block/device.h"
#include "kernels/block/job.h"

namespace isthmus {

// The arguments of Codec::encode_pieces(). Piece, residual and packet are those of the first place; those of the other
// places lie `steps` apart. The job holds the packet's header. If context.on_device is set, the job reads unit and step
// there when it runs.
struct DeviceEncode {
  ConstBuffer piece;
  Buffer residual;  // empty where the codec keeps none
  Buffer packet;
  PacketContext context;
  kernels::DeviceCounts* counts = nullptr;  // the codec adds its counts here
  Buffer scratch;                           // contents do not matter
  int64_t num_pieces = 1;                   // how many pieces are encoded
  int64_t left_out = 1;                     // the place of the piece that is not encoded; num_pieces: none
  kernels::PieceSteps steps = {};
};

// The arguments that decode_shard() has and decode_each() has not.
struct DeviceShard {
  ConstBuffer own;
  int64_t own_place = 0;  // as in kernels::DecodeJobBase
  double scale = 1;
};

// The arguments of Codec::decode_each() or decode_shard(). With neither set, packets are added to `out`.
struct DeviceDecode {
  ConstBuffer packets;
  int64_t num_packets = 1;
  Buffer out;
  bool to_places = false;  // packet i overwrites the i-th of num_packets equal parts of `out`
  PacketContext context;
  kernels::DeviceFault* fault = nullptr;
  Buffer scratch;  // contents do not matter
  std::optional<DeviceShard> shard = std::nullopt;
};

inline kernels::PacketSenders senders_of(const PacketContext& context) {
  return {.first = context.sender, .packets_of_each = context.packets_of_sender};
}

// What determines the scratch memory that a decoding needs.
struct DecodeSize {
  int64_t num_elements;  // of each packet
  int64_t num_packets = 1;
  bool to_places = false;
  bool sums_apart = false;  // the result's type differs from the type of sums
  int64_t own_place = -1;   // as in kernels::DecodeJobBase; -1: there is none
};

// How many packets lie one after another, with those that are left out.
inline int64_t num_places(const DeviceDecode& decode) {
  const bool one_is_left_out = decode.shard && decode.shard->own_place < decode.num_packets;
  return one_is_left_out ? decode.num_packets + 1 : decode.num_packets;
}

// Throws Error if `out` cannot be cut into equal places.
inline DecodeSize size_of(const DeviceDecode& decode, const char* codec) {
  if (!decode.to_places) {
    DecodeSize size = {decode.out.num_elements, decode.num_packets};
    if (decode.shard) {
      size.sums_apart = decode.out.dtype != accumulate_dtype(decode.out.dtype);
      size.own_place = decode.shard->own_place;
    }
    return size;
  }
  ISTHMUS_CHECK(Error, decode.num_packets > 0 && decode.out.num_elements % decode.num_packets == 0, "codec ", codec,
                ": ", decode.out.num_elements, " elements are no equal places for ", decode.num_packets, " packets");
  return {decode.out.num_elements / decode.num_packets, decode.num_packets, true};
}

}  // namespace isthmus
