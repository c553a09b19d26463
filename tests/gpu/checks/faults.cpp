// What decoding finds wrong is seen by the host without waiting, in the words of the CPU.
#include <chrono>
#include <string>
#include <thread>

#include "isthmus/error.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/gpu/checks/suites.h"
#include "tests/gpu/support/coding.h"

namespace isthmus::gpu {
namespace {

constexpr int64_t kNumElements = 50000;

// What the device says in the end; "" if nothing within a while. Never waits for the device.
std::string complaint_of(Device& device) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (std::chrono::steady_clock::now() < deadline) {
    try {
      device.throw_if_faulted();
    } catch (const PacketError& error) {
      return error.what();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return "";
}

std::string complaint_of_host(HostCoding& coding, PacketContext context) {
  try {
    coding.decode(context);
  } catch (const PacketError& error) {
    return error.what();
  }
  return "";
}

// Encodes on both sides, has `damage` change both packets' bytes and context, decodes on both.
using Damage = std::function<PacketContext(uint8_t* packet, int64_t num_bytes)>;
void compare(const MakeGpu& make_gpu, const CodingShape& shape, const Damage& damage) {
  const std::unique_ptr<Gpu> gpu = make_gpu();
  const Stream stream = gpu->device().lane(Lane::kDecode);
  const HostArray piece(make_piece(Data::kHeavyTail, kNumElements, 5), shape.piece);
  DeviceCoding on_device(gpu->device(), shape, kNumElements);
  HostCoding on_host(shape, kNumElements);
  on_device.set_context(kContext, stream);
  on_device.piece().set(piece.view());
  on_device.encode(0, stream);
  on_host.encode(piece.view(), 0, kContext);
  gpu->synchronize();
  gpu->device().throw_if_faulted();

  HostArray packet = on_device.packets().get();
  const PacketContext context = damage(packet.buffer().as<uint8_t>(), packet.num_elements());
  damage(on_host.packets().buffer().as<uint8_t>(), packet.num_elements());
  on_device.packets().set(packet.view());
  on_device.set_context(context, stream);
  on_device.decode(stream);
  const std::string expected = complaint_of_host(on_host, context);
  const std::string found = complaint_of(gpu->device());
  require(!expected.empty(), "the CPU finds nothing wrong");
  require(found == expected, "the device says \"" + found + "\", the CPU \"" + expected + "\"");
  require(complaint_of(gpu->device()) == found, "the fault did not stay");
}

Damage flip(double where) {
  return [where](uint8_t* packet, int64_t num_bytes) {
    packet[static_cast<int64_t>(where * static_cast<double>(num_bytes - 1))] ^= 4;
    return kContext;
  };
}

PacketContext other_step(uint8_t* /*packet*/, int64_t /*num_bytes*/) {
  return {.unit_hash = kContext.unit_hash, .step = kContext.step + 1, .sender = kContext.sender};
}
PacketContext other_unit(uint8_t* /*packet*/, int64_t /*num_bytes*/) {
  return {.unit_hash = ~kContext.unit_hash, .step = kContext.step, .sender = kContext.sender};
}

}  // namespace

void check_faults(Checks& checks, const MakeGpu& make_gpu, bool is_short) {
  const CodingShape shapes[] = {{.codec = "none", .options = {}, .wire = DataType::kBFloat16},
                                {.codec = "tagc", .options = tagc_options(4, .9)},
                                {.codec = "quant", .options = quant_options(4)}};
  for (const CodingShape& shape : shapes) {
    checks.run(shape.name() + ": a damaged byte", [&] { compare(make_gpu, shape, flip(.5)); });
    checks.run(shape.name() + ": another step", [&] { compare(make_gpu, shape, other_step); });
    if (!is_short) {
      checks.run(shape.name() + ": another unit", [&] { compare(make_gpu, shape, other_unit); });
      checks.run(shape.name() + ": a damaged header", [&] { compare(make_gpu, shape, flip(0)); });
      checks.run(shape.name() + ": the last byte", [&] { compare(make_gpu, shape, flip(1)); });
    }
  }
}

}  // namespace isthmus::gpu
