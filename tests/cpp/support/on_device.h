// Encodes and decodes with a codec's passes on an emulated device: what the tests of all codecs' passes share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/aligned_memory.h"
#include "codec/device_arguments.h"
#include "isthmus/codec.h"
#include "kernels/block/device.h"
#include "tests/cpp/emulated/emulated_passes.h"
#include "tests/cpp/support/packets.h"

namespace isthmus {

using test::EmulatedDevice;

using Cut = EmulatedDevice::Cut;

// 64-byte aligned and dirty, as a device's memory.
class Memory {
 public:
  explicit Memory(int64_t bytes) : memory_(allocate_aligned(bytes + 64)), bytes_(bytes) {
    std::memset(memory_.get(), 0xa5, bytes + 64);
  }
  explicit Memory(const std::vector<uint8_t>& bytes) : Memory(static_cast<int64_t>(bytes.size())) {
    std::copy(bytes.begin(), bytes.end(), data());
  }
  uint8_t* data() { return reinterpret_cast<uint8_t*>(memory_.get()); }
  Buffer buffer() { return {memory_.get(), bytes_, DataType::kByte}; }
  std::vector<uint8_t> copy() { return {data(), data() + bytes_}; }
  // Whether nothing was written past the end.
  bool ends_intact() {
    return std::all_of(data() + bytes_, data() + bytes_ + 64, [](uint8_t byte) { return byte == 0xa5; });
  }

 private:
  AlignedMemory memory_;
  int64_t bytes_;
};

inline kernels::DeviceContext device_context(PacketContext context) { return {context.unit_hash, context.step}; }

// The same packets, whose unit and step the device reads from `memory`.
inline PacketContext read_from(const kernels::DeviceContext& memory, PacketContext context) {
  context.unit_hash = context.step = 0;
  context.on_device = &memory;
  return context;
}

struct Encoded {
  std::vector<uint8_t> packet;
  std::vector<float> residual;
  kernels::DeviceCounts counts;
};

// maker: a JobMaker (passes_codec.h). run(device, job): its passes.
template <typename JobMaker, typename Run>
Encoded encode_with(const JobMaker& maker, const Run& run, ConstBuffer piece, std::vector<float> residual,
                    PacketContext context, Cut cut) {
  Memory packet(maker.packet_bytes(piece.num_elements));
  Memory scratch(maker.encode_scratch_bytes(piece.num_elements));
  const kernels::DeviceContext in_memory = device_context(context);
  Encoded encoded;
  EmulatedDevice device(cut, 1);
  run(device, maker.encode_job({.piece = piece,
                                .residual = buffer_of(residual),
                                .packet = packet.buffer(),
                                .context = read_from(in_memory, context),
                                .counts = &encoded.counts,
                                .scratch = scratch.buffer()}));
  EXPECT_TRUE(packet.ends_intact() && scratch.ends_intact());
  encoded.packet = packet.copy();
  encoded.residual = residual;
  return encoded;
}

template <typename JobMaker, typename Run>
kernels::DeviceFault decode_with(const JobMaker& maker, const Run& run, const std::vector<uint8_t>& packets,
                                 int64_t num_packets, Buffer out, bool to_places, PacketContext context, Cut cut) {
  Memory aligned(packets);
  const int64_t num_elements = to_places ? out.num_elements / num_packets : out.num_elements;
  Memory scratch(maker.decode_scratch_bytes({num_elements, num_packets, to_places}));
  const kernels::DeviceContext in_memory = device_context(context);
  kernels::DeviceFault fault;
  EmulatedDevice device(cut, 2);
  run(device, maker.decode_job({.packets = aligned.buffer(),
                                .num_packets = num_packets,
                                .out = out,
                                .to_places = to_places,
                                .context = read_from(in_memory, context),
                                .fault = &fault,
                                .scratch = scratch.buffer()}));
  EXPECT_TRUE(scratch.ends_intact());
  EXPECT_TRUE(aligned.copy() == packets);
  return fault;
}

}  // namespace isthmus
