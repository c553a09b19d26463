// Packets that the CPU made: their sums, and each at its place. What decoding finds wrong is seen by the host without
// waiting, in the words of the CPU, and nothing is decoded after it.
#include <string>
#include <vector>

#include "isthmus/error.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/gpu/device/coding.h"
#include "tests/cpp/gpu/device/tests.h"
#include "tests/cpp/support/error_of.h"

namespace isthmus::gpu {
namespace {

constexpr int64_t kNumElements = 1101;
constexpr int64_t kHeaderBytes = 48;

// Decodes on both sides what the CPU encoded, has `damage` change the packets' bytes and the context, decodes again.
using Damage = std::function<void(uint8_t* packets, int64_t packet_bytes, PacketContext& context)>;
void compare(const CodingShape& shape, const Damage& damage, bool to_places) {
  const std::unique_ptr<Gpu> gpu = make_gpu();
  Device& device = gpu->device();
  const Stream stream = device.lane(Lane::kDecode);
  DeviceCoding on_device(device, shape, kNumElements);
  HostCoding on_host(shape, kNumElements);
  on_device.set_context(kContext, stream);
  for (int packet = 0; packet < shape.num_packets; ++packet) {
    const std::vector<float> piece = make_piece(Data::kHeavyTail, kNumElements, 5 + static_cast<uint32_t>(packet));
    on_host.encode(HostArray(piece, shape.piece).view(), packet, kContext);
  }
  const HostArray right = on_host.packets();
  PacketContext context = kContext;
  const auto decode = [&] { to_places ? on_device.decode_each(stream) : on_device.decode(stream); };
  const auto decode_on_host = [&] { to_places ? on_host.decode_each(context) : on_host.decode(context); };
  on_device.packets().set(right.view());
  decode();
  decode_on_host();
  to_places ? require_equal(on_device.places(), on_host.places(), "packets at their places")
            : require_equal(on_device.out(), on_host.out(), "sums");
  damage(on_host.packets().buffer().as<uint8_t>(), on_device.packet_bytes(), context);
  on_device.packets().set(on_host.packets().view());
  on_device.set_context(context, stream);
  decode();
  const std::string expected = test::error_of<PacketError>(decode_on_host);
  const std::string found = complaint_of(device);
  require(!expected.empty(), "the CPU finds nothing wrong");
  require(found == expected, "the device says \"" + found + "\", the CPU \"" + expected + "\"");
  on_device.packets().set(right.view());
  on_device.set_context(kContext, stream);
  const HostArray before = on_device.out().get();
  decode();
  require(complaint_of(device) == found, "the fault did not stay");
  require_equal(on_device.out(), before, "sums after a fault");
}

// A bit of one packet.
Damage flip(int packet, const std::function<int64_t(int64_t packet_bytes)>& byte) {
  return [=](uint8_t* packets, int64_t packet_bytes, PacketContext& /*context*/) {
    packets[packet * packet_bytes + byte(packet_bytes)] ^= 4;
  };
}

void check_flips(CodingShape shape) {
  add_test("Device", shape.name() + ": damaged bytes", [=] {
    for (const double where : {.1, .15, .3, .5, .9, 1.}) {
      const auto byte = [=](int64_t bytes) { return static_cast<int64_t>(where * static_cast<double>(bytes - 1)); };
      compare(shape, flip(0, byte), /*to_places=*/false);
    }
  });
  for (const int num_packets : {3, 33}) {  // more than are added at once
    shape.num_packets = num_packets;
    for (const int packet : {0, num_packets - 1}) {
      add_test("Device", shape.name() + ": damaged packet " + std::to_string(packet), [=] {
        for (const bool to_places : {false, true}) {
          compare(shape, flip(packet, [](int64_t bytes) { return bytes / 2; }), to_places);
        }
      });
    }
  }
}

}  // namespace

void add_faults() {
  const CodingShape shapes[] = {{.codec = "none", .options = {}, .wire = DataType::kBFloat16},
                                {.codec = "tagc", .options = tagc_options(4, .9)},
                                {.codec = "quant", .options = quant_options(4)}};
  const std::pair<const char*, void (*)(PacketContext&)> others[] = {
      {"another unit", [](PacketContext& context) { context.unit_hash ^= 1; }},
      {"another step", [](PacketContext& context) { ++context.step; }},
      {"another segment", [](PacketContext& context) { context.segment = 200; }},
      {"another node", [](PacketContext& context) { context.sender = 3; }}};
  // All codecs compare headers in one place.
  add_test("Device", shapes[0].name() + ": each damaged byte of a header", [shape = shapes[0]] {
    for (int64_t byte = 0; byte < kHeaderBytes; ++byte) {
      compare(shape, flip(0, [=](int64_t) { return byte; }), /*to_places=*/false);
    }
  });
  for (const CodingShape& shape : shapes) {
    for (const auto& [what, change] : others) {
      const auto damage = [change = change](uint8_t* /*packets*/, int64_t /*packet_bytes*/, PacketContext& context) {
        change(context);
      };
      add_test("Device", shape.name() + ": " + what, [=] { compare(shape, damage, /*to_places=*/false); });
    }
    check_flips(shape);
  }
}

}  // namespace isthmus::gpu
