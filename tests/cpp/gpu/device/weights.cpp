// Differences of weights against the CPU's: packets and replicas.
#include "tests/cpp/support/weights.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/weights/job.h"
#include "kernels/weights/weight_coder.h"
#include "tests/cpp/gpu/device/tests.h"

namespace isthmus::gpu {
namespace {

constexpr int64_t kNodes = 2;

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

WeightHeader header_of(const Rail& rail, int64_t node) {
  WeightHeader header;
  header.dtype = rail.now.view().dtype;
  header.sender = static_cast<uint16_t>(node);
  header.unit_hash = 7;
  header.num_elements = static_cast<uint64_t>(rail.shard_elements());
  header.has_replica = 1;
  return header;
}

// Both nodes encode, and the second one decodes.
void gather(const Rail& rail) {
  const std::unique_ptr<Gpu> gpu = make_gpu();
  Device& device = gpu->device();
  const std::unique_ptr<WeightCoder> coder = make_weight_coder(device);
  const int64_t count = rail.shard_elements();
  const int64_t row_bytes = weight_row_bytes(WeightPackets::most_bytes(rail.shard(0)));
  const DeviceArray replica(device, rail.before.view());
  const DeviceArray shards(device, rail.now.view());
  const DeviceArray headers(device, kNodes * kernels::kWeightHeaderBytes, DataType::kByte);
  const DeviceArray packets(device, kNodes * row_bytes, DataType::kByte);
  const DeviceArray sent(device, weight_sent_bytes(rail.shard(0)), DataType::kByte);
  const DeviceArray encode_scratch(device, coder->encode_scratch_bytes(rail.shard(0)), DataType::kByte);
  const DeviceArray decode_scratch(device, coder->decode_scratch_bytes(rail.shard(0), kNodes), DataType::kByte);
  const Stream stream = device.lane(Lane::kEncodeWeights);
  for (int64_t node = 0; node < kNodes; ++node) {
    coder->encode({.header = header_of(rail, node),
                   .before = replica.buffer().part(node, count),
                   .shard = shards.buffer().part(node, count),
                   .replica = {},
                   .sent = sent.buffer()},
                  {stream, encode_scratch.buffer()});
    const int64_t packet_bytes = std::min(row_bytes, sent.buffer().bytes() - kernels::kWeightHeaderBytes);
    device.convert(sent.buffer().slice(0, kernels::kWeightHeaderBytes),
                   headers.buffer().part(node, kernels::kWeightHeaderBytes), stream);
    device.convert(sent.buffer().slice(kernels::kWeightHeaderBytes, packet_bytes),
                   packets.buffer().slice(node * row_bytes, packet_bytes), stream);
  }
  coder->decode({.headers = headers.buffer(),
                 .num_nodes = kNodes,
                 .node = 1,
                 .packets = packets.buffer(),
                 .shard = shards.buffer().part(1, count),
                 .replica = replica.buffer()},
                {stream, decode_scratch.buffer()});
  auto* const on_host = static_cast<WeightHeader*>(device.allocate_on_host(kNodes * kernels::kWeightHeaderBytes));
  device.copy_to_host(headers.buffer(), {on_host, kNodes * kernels::kWeightHeaderBytes, DataType::kByte}, stream);
  gpu->synchronize();
  device.throw_if_faulted();
  require(same_bytes(replica.get().view(), rail.now.view()), "the replica is not what the shards are");
  const HostArray arrived = packets.get();
  for (int64_t node = 0; node < kNodes; ++node) {
    const std::vector<uint8_t> expected = test::packet_of(rail.before.view().part(node, count), rail.shard(node));
    const auto bytes = static_cast<int64_t>(expected.size());
    require(on_host[node].is_whole(), "a header is not whole");
    require(static_cast<int64_t>(on_host[node].packet_bytes) == bytes, "a packet is not as long as the CPU's");
    require(same_bytes(arrived.view().slice(node * row_bytes, bytes), {expected.data(), bytes, DataType::kByte}),
            "a packet differs from the CPU's");
  }
}

}  // namespace

void add_weights(bool is_short) {
  const std::vector<int64_t> sizes =
      is_short ? std::vector<int64_t>{0, 1, 17, 1025, 16'385}
               : std::vector<int64_t>{0, 1, 16, 17, 1023, 16'384, 16'385, 1'000'003, 20'000'000};
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16, DataType::kFloat32, DataType::kFloat64}) {
    for (const int64_t size : sizes) {
      const std::string what = "weights, " + std::to_string(size) + " elements of " + to_string(dtype);
      for (const float distance : {1e-3F, 0.F, 1e-5F, 10.F}) {
        add_test("Codecs", what + " moved by about " + std::to_string(distance),
                 [=] { gather(make_rail(size, dtype, distance)); });
        if (is_short && size > 2000 && distance == 0) {
          break;
        }
      }
    }
  }
}

}  // namespace isthmus::gpu
