// Encodes and decodes with tagc's passes on an emulated device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "codec/tagc_device.h"
#include "emulated_device.h"
#include "kernels/tagc_sequence.h"
#include "scratch.h"

namespace isthmus {

using test::EmulatedDevice;

inline constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7};

// How a device cuts the work: results must not depend on it.
struct Cut {
  int64_t num_threads;
  int64_t max_groups;
  EmulatedDevice::Threads threads = EmulatedDevice::Threads::kInTurns;
};
inline constexpr Cut kCuts[] = {{1, 1}, {7, 3}, {32, 2}, {33, 5}, {128, 4}};

inline Options options_of(double ratio, double sparsity, int64_t block_elements = 0, int64_t peel_rounds = 64) {
  Options options;
  options.ratio = ratio;
  options.sparsity = sparsity;
  options.block_elements = block_elements;
  options.peel_rounds = peel_rounds;
  return options;
}

// 64-byte aligned and dirty, as a device's memory.
class Memory {
 public:
  explicit Memory(int64_t bytes) : memory_(allocate_aligned(bytes + 64)), bytes_(bytes) {
    std::memset(memory_.get(), 0xa5, bytes + 64);
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

inline Buffer buffer_of(std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
}
inline ConstBuffer buffer_of(const std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
}

inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) {
    bits.push_back(std::bit_cast<uint32_t>(value));
  }
  return bits;
}

inline kernels::DeviceContext device_context(PacketContext context) { return {context.unit_hash, context.step}; }

struct Encoded {
  std::vector<uint8_t> packet;
  std::vector<float> residual;
  kernels::DeviceCounts counts;
};

inline Encoded encode_on_device(const Options& options, ConstBuffer piece, std::vector<float> residual,
                                PacketContext context, Cut cut) {
  const TagcDevice codec(options);
  const int64_t num_elements = piece.num_elements;
  Memory packet(codec.packet_bytes(num_elements));
  Memory scratch(codec.encode_scratch_bytes(num_elements));
  const kernels::DeviceContext in_memory = device_context(context);
  Encoded encoded;
  EmulatedDevice device(cut.num_threads, cut.max_groups, 1, cut.threads);
  kernels::emulated::encode_tagc(device, codec.encode_job(piece, buffer_of(residual), packet.buffer(), &in_memory,
                                                          &encoded.counts, scratch.buffer()));
  EXPECT_TRUE(packet.ends_intact() && scratch.ends_intact());
  encoded.packet = packet.copy();
  encoded.residual = residual;
  return encoded;
}

inline Encoded encode_on_device(const Options& options, const std::vector<float>& piece,
                                const std::vector<float>& residual, PacketContext context, Cut cut) {
  return encode_on_device(options, buffer_of(piece), residual, context, cut);
}

inline kernels::DeviceFault decode_on_device(const Options& options, const std::vector<uint8_t>& packets,
                                             int num_packets, std::vector<float>& out, PacketContext context, Cut cut) {
  const TagcDevice codec(options);
  const auto num_elements = static_cast<int64_t>(out.size());
  Memory aligned(static_cast<int64_t>(packets.size()));
  std::copy(packets.begin(), packets.end(), aligned.data());
  Memory scratch(codec.decode_scratch_bytes(num_elements, num_packets));
  const kernels::DeviceContext in_memory = device_context(context);
  kernels::DeviceFault fault;
  EmulatedDevice device(cut.num_threads, cut.max_groups, 2, cut.threads);
  kernels::emulated::decode_tagc(
      device, codec.decode_job(aligned.buffer(), num_packets, buffer_of(out), &in_memory, &fault, scratch.buffer()));
  EXPECT_TRUE(scratch.ends_intact());
  return fault;
}

}  // namespace isthmus
