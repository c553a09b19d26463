// Weights and gathers of them for tests on a device, and what the CPU makes of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "codec/gpu_device.h"
#include "kernels/weights/job.h"
#include "kernels/weights/layout.h"
#include "kernels/weights/weight_coder.h"
#include "tests/cpp/support/on_device.h"
#include "tests/cpp/support/weights.h"

namespace isthmus::test {

using kernels::kWeightBlockElements;
using kernels::kWeightHeaderBytes;

constexpr Cut kCut = {16, 2};

inline std::vector<uint8_t> bytes_of(const std::vector<Array>& shards) {
  std::vector<uint8_t> bytes;
  for (const Array& shard : shards) {
    const auto* begin = shard.view().as<uint8_t>();
    bytes.insert(bytes.end(), begin, begin + shard.view().bytes());
  }
  return bytes;
}

inline WeightHeader header_of_unit(const Array& shard, int64_t node = 0) {
  WeightHeader header;
  header.dtype = shard.view().dtype;
  header.sender = static_cast<uint16_t>(node);
  header.unit_hash = 0xfedcba9876543210;
  header.gather = 41;
  header.num_elements = static_cast<uint64_t>(shard.view().num_elements);
  header.has_replica = 1;
  header.reserved = 7;
  return header;
}

// As the CPU makes it.
inline WeightHeader sealed_header(const Array& before, const Array& now, int64_t node) {
  WeightHeader header = header_of_unit(now, node);
  const std::vector<uint8_t> packet = packet_of(before.view(), now.view());
  header.packet_bytes = packet.size();
  header.packet_checksum = checksum_of({packet.data(), static_cast<int64_t>(packet.size()), DataType::kByte});
  header.seal();
  return header;
}

inline Array random_bits(int64_t count, DataType dtype, uint32_t seed) {
  std::mt19937 generator(seed);
  Array array(count, dtype);
  auto* bytes = array.buffer().as<uint8_t>();
  std::generate_n(bytes, array.view().bytes(), [&] { return static_cast<uint8_t>(generator()); });
  return array;
}

// Every pattern of 16 bits, or 65536 of all kinds of 32; and such as are at most so far from them: NaN of all payloads,
// both zeros, denormals and Inf.
inline Array all_patterns(DataType dtype, uint32_t most_distance = 0) {
  constexpr int64_t kPatterns = 65536;
  std::mt19937 generator(3);
  Array array(kPatterns, dtype);
  for (uint32_t i = 0; i < kPatterns; ++i) {
    const auto distance = static_cast<uint32_t>(generator() % (most_distance + 1));
    if (dtype == DataType::kFloat32) {
      array.buffer().as<uint32_t>()[i] = (i << 16) + i + distance;
    } else {
      array.buffer().as<uint16_t>()[i] = static_cast<uint16_t>(i + distance);
    }
  }
  return array;
}

// What the nodes of a rail hold before and after a gather, and how it is received at one of them.
struct Rail {
  Rail(std::vector<Array> old_shards, std::vector<Array> new_shards)
      : before(std::move(old_shards)), now(std::move(new_shards)) {
    for (size_t node = 0; node < now.size(); ++node) {
      packets.push_back(packet_of(before[node].view(), now[node].view()));
      headers.push_back(sealed_header(before[node], now[node], static_cast<int64_t>(node)));
    }
  }

  // Sets header and checksum of a packet that was replaced.
  void seal(size_t node) {
    packets[node].resize((packets[node].size() + 7) / 8 * 8);
    headers[node].packet_bytes = packets[node].size();
    headers[node].packet_checksum =
        checksum_of({packets[node].data(), static_cast<int64_t>(packets[node].size()), DataType::kByte});
    headers[node].seal();
  }

  std::vector<uint8_t> received_headers() const {
    const auto* begin = reinterpret_cast<const uint8_t*>(headers.data());
    return {begin, begin + headers.size() * sizeof(WeightHeader)};
  }
  // In rows that leave no byte more than they must: 16.
  std::vector<uint8_t> received_packets() const {
    int64_t longest = 0;
    for (const std::vector<uint8_t>& packet : packets) {
      longest = std::max(longest, static_cast<int64_t>(packet.size()));
    }
    std::vector<uint8_t> rows;
    for (std::vector<uint8_t> packet : packets) {
      packet.resize((longest + 15) / 16 * 16 + 16, 0xa5);
      rows.insert(rows.end(), packet.begin(), packet.end());
    }
    return rows;
  }

  std::vector<Array> before;
  std::vector<Array> now;
  std::vector<WeightHeader> headers;
  std::vector<std::vector<uint8_t>> packets;
};

inline Rail rail_of(int64_t count, DataType dtype, double learning_rate, int64_t num_nodes = 3) {
  std::vector<Array> before;
  std::vector<Array> now;
  for (int64_t node = 0; node < num_nodes; ++node) {
    const std::vector<double> values = weights(count, static_cast<uint64_t>(10 + node));
    before.emplace_back(values, dtype);
    now.emplace_back(node == 2 ? values : moved(values, learning_rate, static_cast<uint64_t>(20 + node)), dtype);
  }
  return {before, now};
}

}  // namespace isthmus::test
