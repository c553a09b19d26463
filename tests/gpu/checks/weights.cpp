// Differences of weights against the CPU's: packets, replicas, and what the host carries.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "codec/gpu_device.h"
#include "codec/weights/device.h"
#include "tests/gpu/checks/suites.h"
#include "tests/gpu/support/device_array.h"

namespace isthmus::gpu {
namespace {

constexpr int64_t kNodes = 2;
constexpr int64_t kHeaderBytes = sizeof(WeightHeader);

// Weights of two nodes, and what they were before.
struct Rail {
  HostArray before;  // of both nodes, as is what follows
  HostArray now;

  int64_t shard_elements() const { return now.num_elements() / kNodes; }
  ConstBuffer shard(int64_t node) const { return now.view().part(node, shard_elements()); }
};

Rail make_rail(int64_t shard_elements, DataType dtype, float distance) {
  std::mt19937 random(static_cast<uint32_t>(shard_elements));
  std::normal_distribution<float> weights(0, .02F);
  std::normal_distribution<float> moves(0, distance);
  std::vector<float> before(static_cast<size_t>(kNodes * shard_elements));
  std::vector<float> now(before.size());
  for (size_t i = 0; i < now.size(); ++i) {
    before[i] = weights(random);
    now[i] = distance == 0 ? before[i] : before[i] + moves(random);
  }
  return {HostArray(before, dtype), HostArray(now, dtype)};
}

std::vector<std::byte> packet_of_cpu(const Rail& rail, int64_t node) {
  const ConstBuffer shard = rail.shard(node);
  std::vector<std::byte> packet(static_cast<size_t>(WeightPackets::most_bytes(shard) + WeightPackets::kMarginBytes));
  const int64_t bytes = WeightPackets().encode(rail.before.view().part(node, rail.shard_elements()), shard,
                                               {packet.data(), static_cast<int64_t>(packet.size()), DataType::kByte});
  packet.resize(static_cast<size_t>(bytes));
  return packet;
}

WeightHeader header_of(const Rail& rail, int64_t node) {
  WeightHeader header;
  header.dtype = rail.now.view().dtype;
  header.sender = static_cast<uint16_t>(node);
  header.unit_hash = 7;
  header.num_elements = static_cast<uint64_t>(rail.shard_elements());
  header.has_replica = 1;
  return header;
}

// Both nodes encode, and the second one decodes. The host has carried the shards before it is asked to.
void gather(const MakeGpu& make_gpu, const Rail& rail, int64_t capacity, kernels::WeightVerdict verdict) {
  const std::unique_ptr<Gpu> gpu = make_gpu();
  auto& device = dynamic_cast<GpuDevice&>(gpu->device());
  const Stream stream = device.lane(Lane::kEncode);
  DeviceLauncher& launcher = device.passes().launcher;
  const int64_t count = rail.shard_elements();
  const int64_t row_bytes = kHeaderBytes + capacity;
  const DeviceArray replica(device, rail.before.view());
  const DeviceArray shards(device, rail.now.view());
  const DeviceArray received(device, kNodes * row_bytes, DataType::kByte);
  const ConstBuffer shard = rail.shard(1);
  const DeviceArray encode_scratch(device, weight_encode_scratch_bytes(shard), DataType::kByte);
  const DeviceArray decode_scratch(device, weight_decode_scratch_bytes(shard, kNodes), DataType::kByte);
  const auto outcome_memory = device.allocate_mapped(weight_outcome_bytes(kNodes));
  const auto outgoing = device.allocate_mapped(std::max<int64_t>(shard.bytes(), 1));
  const auto arrived = device.allocate_mapped(std::max<int64_t>(kNodes * shard.bytes(), 1));
  std::copy_n(rail.now.view().as<std::byte>(), kNodes * shard.bytes(), arrived.get());
  auto& outcome = *reinterpret_cast<kernels::WeightOutcome*>(outcome_memory.get());
  outcome.ready = 1;
  for (int64_t node = 0; node < kNodes; ++node) {
    launcher.run(make_weight_encode_job({.header = header_of(rail, node),
                                         .before = replica.buffer().part(node, count),
                                         .shard = shards.buffer().part(node, count),
                                         .replica = {},
                                         .sent = received.buffer().part(node, row_bytes),
                                         .scratch = encode_scratch.buffer()}),
                 stream);
  }
  gpu->synchronize();
  const HostArray sent = received.get();
  launcher.run(make_weight_decode_job({.expected = header_of(rail, 1),
                                       .num_nodes = kNodes,
                                       .node = 1,
                                       .received = received.buffer(),
                                       .shard = shards.buffer().part(1, count),
                                       .replica = replica.buffer(),
                                       .outcome = &outcome,
                                       .outgoing = outgoing.get(),
                                       .arrived = arrived.get(),
                                       .scratch = decode_scratch.buffer()}),
               stream);
  gpu->synchronize();
  require(outcome.verdict == verdict, "the verdict is another one: " + text_of_fault(outcome));
  require(same_bytes(replica.get().view(), rail.now.view()), "the replica is not what the shards are");
  for (int64_t node = 0; node < kNodes; ++node) {
    const std::vector<std::byte> expected = packet_of_cpu(rail, node);
    const auto bytes = static_cast<int64_t>(expected.size());
    const WeightHeader header = received_header(outcome, node);
    require(header.is_whole(), "a header is not whole");
    require(static_cast<int64_t>(header.packet_bytes) == bytes, "a packet is not as long as the CPU's");
    require(bytes > capacity || same_bytes(sent.view().slice(node * row_bytes + kHeaderBytes, bytes),
                                           {expected.data(), bytes, DataType::kByte}),
            "a packet differs from the CPU's");
  }
}

int64_t capacity_for(const Rail& rail) { return (WeightPackets::most_bytes(rail.shard(0)) + 255) / 256 * 256; }

}  // namespace

void check_weights(Checks& checks, const MakeGpu& make_gpu, bool is_short) {
  using kernels::WeightVerdict;
  const std::vector<int64_t> sizes =
      is_short ? std::vector<int64_t>{0, 1, 17, 1025, 16'385}
               : std::vector<int64_t>{0, 1, 16, 17, 1023, 16'384, 16'385, 1'000'003, 20'000'000};
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (const int64_t size : sizes) {
      const std::string what = "weights, " + std::to_string(size) + " elements of " + to_string(dtype);
      for (const float distance : {1e-3F, 1e-5F, 10.F}) {
        checks.run(what + " moved by about " + std::to_string(distance), [&] {
          const Rail rail = make_rail(size, dtype, distance);
          gather(make_gpu, rail, capacity_for(rail), WeightVerdict::kInPlace);
        });
        if (is_short && size > 2000) {
          break;
        }
      }
      checks.run(what + " that did not move",
                 [&] { gather(make_gpu, make_rail(size, dtype, 0), 0, WeightVerdict::kInPlace); });
      if (size > 0) {
        checks.run(what + " that the host carries",
                   [&] { gather(make_gpu, make_rail(size, dtype, 10), 0, WeightVerdict::kTooLong); });
      }
    }
  }
}

}  // namespace isthmus::gpu
