// Weights whose gathers are tested, on the CPU and on emulated GPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/node_map.h"
#include "isthmus/options.h"
#include "isthmus/unit.h"
#include "kernels/weights/weight_packet.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {

inline Options delta_options() {
  Options options;
  options.weights = WeightForm::kDelta;
  options.min_elements = 0;
  return options;
}

inline UnitKey key_of(const std::string& name, ConstBuffer gathered) {
  return {name, gathered.num_elements, gathered.dtype, Collective::kAllGather};
}

// Weights as they are trained, and what a step of AdamW makes of them.
inline std::vector<double> weights(int64_t count, uint64_t seed = 1) {
  std::vector<double> values = random_values(count, seed);
  for (double& value : values) {
    value *= 0.02;
  }
  return values;
}
inline std::vector<double> moved(std::vector<double> values, double learning_rate, uint64_t seed = 2) {
  const std::vector<double> directions = random_values(static_cast<int64_t>(values.size()), seed);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] += learning_rate * 0.2 * directions[i];
  }
  return values;
}

// The CPU's packet from one shard to another, and what it makes of a replica. Throws PacketError.
inline std::vector<uint8_t> packet_of(ConstBuffer before, ConstBuffer now) {
  const int64_t most_bytes = WeightPackets::most_bytes(now);
  std::vector<uint8_t> packet(static_cast<size_t>(most_bytes + WeightPackets::kMarginBytes));
  const int64_t bytes = WeightPackets().encode(before, now, {packet.data(), most_bytes, DataType::kByte});
  packet.resize(static_cast<size_t>(bytes));
  return packet;
}
inline void decode_into(Buffer replica, std::vector<uint8_t> packet) {
  const auto bytes = static_cast<int64_t>(packet.size());
  packet.resize(packet.size() + WeightPackets::kMarginBytes);
  WeightPackets().decode({packet.data(), bytes, DataType::kByte}, replica);
}

inline const std::vector<DataType> kCodedTypes = {DataType::kBFloat16, DataType::kFloat16, DataType::kFloat32};

// A model's weights, which every rank has a chunk of.
class Weights {
 public:
  Weights(int64_t num_elements, DataType dtype) : values_(random_values(num_elements, 3)), dtype_(dtype) {}

  void move(double distance) {
    const std::vector<double> directions = random_values(static_cast<int64_t>(values_.size()), ++seed_);
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] += distance * directions[i];
    }
  }
  void set(size_t index, double value) { values_[index] = value; }
  Array array() const { return {values_, dtype_}; }

 private:
  std::vector<double> values_;
  DataType dtype_;
  uint64_t seed_ = 100;
};

inline std::vector<NodeMap> maps_of_weights() {
  return {NodeMap::parse("2x1", 2), NodeMap::parse("2x2", 4), NodeMap::parse("3x2", 6), NodeMap::parse("0,2|1,3", 4),
          NodeMap::parse("1x3", 3)};
}

// Units of several sizes: gather(whole, name) after each of some moves, of which some are none.
template <typename Gather>
void move_and_gather(int world_size, DataType dtype, const Gather& gather) {
  for (const int64_t chunk : {int64_t{1}, int64_t{33}, int64_t{5000}}) {
    Weights weights(chunk * world_size, dtype);
    for (const double distance : {0.0, 1e-3, 0.0, 1e-5, 100.0}) {
      weights.move(distance);
      gather(weights.array(), "unit of " + std::to_string(chunk));
    }
  }
}

}  // namespace isthmus::test
