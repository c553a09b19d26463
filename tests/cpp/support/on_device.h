// Memory for passes on an emulated device, and how it cuts them: what tests of codecs' passes share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "codec/gpu_device.h"
#include "isthmus/codec.h"
#include "kernels/block/device.h"
#include "tests/cpp/emulated/emulated_passes.h"
#include "tests/cpp/support/packets.h"

namespace isthmus {

using test::EmulatedDevice;

using Cut = EmulatedDevice::Cut;

// A device's.
struct Memory : Packet {
  explicit Memory(int64_t num_bytes) : Packet(num_bytes, 64) {}
  explicit Memory(const std::vector<uint8_t>& contents) : Memory(static_cast<int64_t>(contents.size())) {
    std::copy(contents.begin(), contents.end(), data());
  }
};

// Runs jobs at once. Faults go to `fault`.
class CutLauncher final : public DeviceLauncher {
 public:
  kernels::DeviceFault fault;

  explicit CutLauncher(Cut cut) : cut_(cut) {}
  void run(const kernels::AnyJob& job, Stream /*stream*/) override {
    kernels::AnyJob with_fault = job;
    std::visit([this](auto& each) { set_fault(each, &fault, &fault); }, with_fault);
    EmulatedDevice device(cut_, ++seed_);
    kernels::emulated::run_passes(device, with_fault);
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
