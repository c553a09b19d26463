// Memory for passes on an emulated device, and how it cuts them: what tests of codecs' passes share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/aligned_memory.h"
#include "codec/gpu_device.h"
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

// Runs jobs at once.
class CutLauncher final : public DeviceLauncher {
 public:
  explicit CutLauncher(Cut cut) : cut_(cut) {}
  void run(const kernels::Job& job, Stream /*stream*/) override {
    EmulatedDevice device(cut_, ++seed_);
    kernels::emulated::run_passes(device, job);
  }

 private:
  const Cut cut_;
  uint32_t seed_ = 0;
};

inline kernels::DeviceContext device_context(PacketContext context) { return {context.unit_hash, context.step}; }

// The same packets, whose unit and step the device reads from `memory`.
inline PacketContext read_from(const kernels::DeviceContext& memory, PacketContext context) {
  context.unit_hash = context.step = 0;
  context.on_device = &memory;
  return context;
}

}  // namespace isthmus
