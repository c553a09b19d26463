// Packets of weights, in all types: what was sent comes out bit for bit, and damage is refused, or decodes in its
// place.
#include <algorithm>

#include "kernels/weights/weight_packet.h"
#include "tests/fuzz/packets.h"

using namespace isthmus;
using namespace isthmus::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMostElements = 40000;  // more than two blocks
  FuzzedDataProvider provider(data, size);
  const auto dtype = static_cast<DataType>(provider.ConsumeIntegralInRange<int64_t>(0, 4));
  const int64_t num_elements = std::max<int64_t>(consume_size(provider, kMostElements), 1);
  const uint32_t seed = provider.ConsumeIntegral<uint16_t>();
  const float distance = provider.PickValueInArray({0.0F, 1e-7F, 1e-4F, 1e-2F, 1.0F, 1e30F});
  const bool is_noise = provider.ConsumeBool();

  const Packet before(num_elements * element_bytes(dtype));
  const Packet now(before.bytes);
  std::vector<float> values = make_values(num_elements, seed);
  if (dtype == DataType::kByte || is_noise) {
    for (int64_t i = 0; i < before.bytes; ++i) {
      before.data()[i] = static_cast<uint8_t>(seed + 31 * i * i);
      now.data()[i] = static_cast<uint8_t>(i % 5 == 0 ? seed + 7 * i : before.data()[i]);
    }
  } else {
    convert(buffer_of(values), {before.data(), num_elements, dtype});
    const std::vector<float> directions = make_values(num_elements, seed + 1);
    for (int64_t i = 0; i < num_elements; ++i) {
      values[i] += distance * directions[i] * values[i];
    }
    convert(buffer_of(values), {now.data(), num_elements, dtype});
  }

  WeightPackets packets;
  const Buffer replica{before.data(), num_elements, dtype};
  const std::vector<uint8_t> old_bytes = before.copy();
  const Packet packet(WeightPackets::most_bytes(replica) + WeightPackets::kMarginBytes);
  const int64_t packet_bytes = packets.encode(replica, {now.data(), num_elements, dtype}, packet.buffer());
  require((packet_bytes == 0) == (old_bytes == now.copy()), "only what is equal takes nothing");
  const auto decode = [&](int64_t bytes) {
    return accepts([&] { packets.decode(packet.buffer().slice(0, bytes), replica); });
  };
  require(packet_bytes == 0 || decode(packet_bytes), "what was sent is accepted");
  require(packet_bytes == 0 || before.copy() == now.copy(), "what was sent comes out bit for bit");

  std::copy(old_bytes.begin(), old_bytes.end(), before.data());
  const int64_t cut = provider.ConsumeIntegralInRange<int64_t>(0, packet_bytes / 8) * 8;
  damage(provider, packet);
  decode(provider.ConsumeBool() ? cut : packet_bytes);  // anything but reading or writing outside
  return 0;
}
