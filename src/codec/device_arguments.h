// The arguments that codecs of a device make jobs from. All memory is the device's.
#pragma once

#include <cstdint>

#include "isthmus/codec.h"
#include "isthmus/error.h"
#include "kernels/block/device.h"

namespace isthmus {

// The arguments of Codec::encode(). The job reads unit and step from context.on_device when it runs; it holds the rest
// of the packet's header, with segment and sender.
struct DeviceEncode {
  ConstBuffer piece;
  Buffer residual;  // empty where the codec keeps none
  Buffer packet;
  PacketContext context;
  kernels::DeviceCounts* counts = nullptr;  // the codec adds its counts here
  Buffer scratch;                           // contents do not matter
};

// The arguments of Codec::decode_sum(), or of decode_each().
struct DeviceDecode {
  ConstBuffer packets;
  int64_t num_packets = 1;
  Buffer out;
  bool to_places = false;  // packet i replaces the i-th of num_packets equal parts of `out`, whatever was there
  PacketContext context;
  kernels::DeviceFault* fault = nullptr;
  Buffer scratch;  // contents do not matter
};

inline kernels::PacketSenders senders_of(const PacketContext& context) {
  return {.first = context.sender, .packets_of_each = context.packets_of_sender};
}

// What determines the scratch memory of a decoding.
struct DecodeSize {
  int64_t num_elements;  // of each packet
  int64_t num_packets = 1;
  bool to_places = false;
};

// Throws Error where `out` cannot be cut into equal places.
inline DecodeSize size_of(const DeviceDecode& decode, const char* codec) {
  if (!decode.to_places) {
    return {decode.out.num_elements, decode.num_packets, false};
  }
  ISTHMUS_CHECK(Error, decode.num_packets > 0 && decode.out.num_elements % decode.num_packets == 0, "codec ", codec,
                ": ", decode.out.num_elements, " elements are no equal places for ", decode.num_packets, " packets");
  return {decode.out.num_elements / decode.num_packets, decode.num_packets, true};
}

}  // namespace isthmus
