// Memory of a device for elements of any type, seen as doubles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/device.h"

namespace isthmus::perf {

class Memory {
 public:
  Memory(Device& device, int64_t num_elements, DataType dtype)
      : device_(device),
        memory_(device.allocate(num_elements * element_bytes(dtype))),
        num_elements_(num_elements),
        dtype_(dtype) {}

  Buffer buffer() { return {memory_.get(), num_elements_, dtype_}; }

  // value(index) in each element.
  template <typename Value>
  void fill(const Value& value) {
    std::vector<double> values(static_cast<size_t>(num_elements_));
    for (int64_t i = 0; i < num_elements_; ++i) {
      values[i] = value(i);
    }
    std::vector<std::byte> rounded(static_cast<size_t>(buffer().bytes()));
    const Buffer host{rounded.data(), num_elements_, dtype_};
    convert({values.data(), num_elements_, DataType::kFloat64}, host);
    device_.write(host, buffer());
  }

 private:
  Device& device_;
  DeviceMemory memory_;
  int64_t num_elements_;
  DataType dtype_;
};

inline std::vector<std::byte> bytes_of(Device& device, ConstBuffer buffer) {
  std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes()));
  device.read(buffer, {bytes.data(), buffer.num_elements, buffer.dtype});
  return bytes;
}

inline std::vector<double> values_of(Device& device, ConstBuffer buffer) {
  const std::vector<std::byte> bytes = bytes_of(device, buffer);
  std::vector<double> values(static_cast<size_t>(buffer.num_elements));
  convert({bytes.data(), buffer.num_elements, buffer.dtype}, {values.data(), buffer.num_elements, DataType::kFloat64});
  return values;
}

}  // namespace isthmus::perf
