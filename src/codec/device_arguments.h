// The arguments that codecs of a device make jobs from. All memory is the device's.
#pragma once

#include <cstdint>
#include <optional>

#include "isthmus/codec.h"
#include "isthmus/error.h"
#include "kernels/block/device.h"
#include "kernels/block/job.h"

namespace isthmus {

// The arguments of Codec::encode_pieces(): piece, residual and packet are those of the first place, and their likes lie
// `steps` apart. The job holds the packet's header; where there is context.on_device, it
// reads unit and step there when it runs.
struct DeviceEncode {
  ConstBuffer piece;
  Buffer residual;  // empty where the codec keeps none
  Buffer packet;
  PacketContext context;
  kernels::DeviceCounts* counts = nullptr;  // the codec adds its counts here
  Buffer scratch;                           // contents do not matter
  int64_t num_pieces = 1;                   // that are encoded
  int64_t left_out = 1;                     // the place of one that is not; num_pieces: none
  kernels::PieceSteps steps = {};
};

// The arguments of a decoding that decode_shard() has and decode_each() has not.
struct DeviceShard {
  ConstBuffer own;
  int64_t own_place = 0;  // as in kernels::DecodeJobBase
  double scale = 1;
};

// The arguments of Codec::decode_each(), or of decode_shard(). Without either a packet is added to `out`.
struct DeviceDecode {
  ConstBuffer packets;
  int64_t num_packets = 1;
  Buffer out;
  bool to_places = false;  // packet i replaces the i-th of num_packets equal parts of `out`, whatever was there
  PacketContext context;
  kernels::DeviceFault* fault = nullptr;
  Buffer scratch;  // contents do not matter
  std::optional<DeviceShard> shard = std::nullopt;
};

inline kernels::PacketSenders senders_of(const PacketContext& context) {
  return {.first = context.sender, .packets_of_each = context.packets_of_sender};
}

// What determines the scratch memory of a decoding.
struct DecodeSize {
  int64_t num_elements;  // of each packet
  int64_t num_packets = 1;
  bool to_places = false;
  bool sums_apart = false;  // the result is of another type than the one that sums are taken in
  int64_t own_place = -1;   // as in kernels::DecodeJobBase; -1: there is none
};

// How many packets lie one after another, those that are left out among them.
inline int64_t num_places(const DeviceDecode& decode) {
  const bool one_is_left_out = decode.shard && decode.shard->own_place < decode.num_packets;
  return one_is_left_out ? decode.num_packets + 1 : decode.num_packets;
}

// Throws Error where `out` cannot be cut into equal places.
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
