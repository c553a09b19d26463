// Elements in a device's memory, copied in and out. Every copy waits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/device.h"

namespace isthmus::gpu {

// Elements of any type in the host's memory, aligned as packets are; zeros at first.
class HostArray {
 public:
  HostArray(int64_t num_elements, DataType dtype)
      : lines_(static_cast<size_t>(num_elements * element_bytes(dtype) + 63) / 64),
        num_elements_(num_elements),
        dtype_(dtype) {}
  // `values`, converted.
  HostArray(const std::vector<float>& values, DataType dtype) : HostArray(static_cast<int64_t>(values.size()), dtype) {
    convert({values.data(), num_elements_, DataType::kFloat32}, buffer());
  }

  int64_t num_elements() const { return num_elements_; }
  Buffer buffer() { return {lines_.data(), num_elements_, dtype_}; }
  ConstBuffer view() const { return {lines_.data(), num_elements_, dtype_}; }
  HostArray as(DataType dtype) const {
    HostArray other(num_elements_, dtype);
    convert(view(), other.buffer());
    return other;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
  int64_t num_elements_;
  DataType dtype_;
};

// The same on a device. offset: elements that lie before the first, whose address is aligned.
class DeviceArray {
 public:
  DeviceArray(Device& device, int64_t num_elements, DataType dtype, int64_t offset = 0)
      : device_(&device), memory_(device.allocate((num_elements + offset) * element_bytes(dtype))) {
    buffer_ = Buffer{memory_.get(), num_elements + offset, dtype}.slice(offset, num_elements);
  }
  DeviceArray(Device& device, ConstBuffer values, int64_t offset = 0)
      : DeviceArray(device, values.num_elements, values.dtype, offset) {
    set(values);
  }

  Buffer buffer() const { return buffer_; }
  void set(ConstBuffer values) { device_->write(values, buffer_); }
  HostArray get() const {
    HostArray values(buffer_.num_elements, buffer_.dtype);
    device_->read(buffer_, values.buffer());
    return values;
  }

 private:
  Device* device_;
  DeviceMemory memory_;
  Buffer buffer_;
};

inline bool same_bytes(ConstBuffer a, ConstBuffer b) {
  return a.bytes() == b.bytes() && (a.bytes() == 0 || std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0);
}

// Bit for bit, but any NaN equals any other. Returns the first element that differs, -1 if none does.
inline int64_t first_difference(ConstBuffer a, ConstBuffer b) {
  constexpr int64_t kAtATime = 1 << 20;
  if (a.num_elements != b.num_elements || a.dtype != b.dtype) {
    return 0;
  }
  for (int64_t begin = 0; begin < a.num_elements; begin += kAtATime) {
    const int64_t count = a.num_elements - begin < kAtATime ? a.num_elements - begin : kAtATime;
    if (same_bytes(a.slice(begin, count), b.slice(begin, count))) {
      continue;
    }
    if (a.dtype == DataType::kByte) {
      const auto* bytes = a.as<uint8_t>();
      return std::mismatch(bytes + begin, bytes + begin + count, b.as<uint8_t>() + begin).first - bytes;
    }
    HostArray x(count, DataType::kFloat64);
    HostArray y(count, DataType::kFloat64);
    convert(a.slice(begin, count), x.buffer());
    convert(b.slice(begin, count), y.buffer());
    for (int64_t i = 0; i < count; ++i) {
      const double left = x.view().as<double>()[i];
      const double right = y.view().as<double>()[i];
      const bool are_nan = std::isnan(left) && std::isnan(right);
      if (!are_nan && std::memcmp(&left, &right, sizeof(left)) != 0) {
        return begin + i;
      }
    }
  }
  return -1;
}

}  // namespace isthmus::gpu
