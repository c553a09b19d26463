// Arrays of any element type in the host's and in a device's memory, and how they are compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/device.h"

namespace isthmus::test {

inline constexpr DataType kFloat32 = DataType::kFloat32;
inline const std::vector<DataType> kFloatingTypes = {kFloat32, DataType::kBFloat16, DataType::kFloat16,
                                                     DataType::kFloat64};

// Of memory on boundaries of 64 bytes, as packets lie.
template <typename T>
struct AlignedAllocator {
  using value_type = T;
  T* allocate(size_t count) { return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* memory, size_t /*count*/) { ::operator delete (memory, std::align_val_t{64}); }
  bool operator==(const AlignedAllocator&) const = default;
};
using Bytes = std::vector<std::byte, AlignedAllocator<std::byte>>;

// Owns elements of one type, zeros at first. Values are rounded to the type when they are set.
class Array {
 public:
  Array() = default;
  Array(int64_t num_elements, DataType dtype)
      : bytes_(static_cast<size_t>(num_elements * element_bytes(dtype))), num_elements_(num_elements), dtype_(dtype) {}
  Array(const std::vector<double>& values, DataType dtype) : Array(static_cast<int64_t>(values.size()), dtype) {
    convert({values.data(), num_elements_, DataType::kFloat64}, buffer());
  }
  template <std::same_as<float> Float>
  Array(const std::vector<Float>& values, DataType dtype) : Array(static_cast<int64_t>(values.size()), dtype) {
    convert({values.data(), num_elements_, DataType::kFloat32}, buffer());
  }

  int64_t num_elements() const { return num_elements_; }
  Buffer buffer() { return {bytes_.data(), num_elements_, dtype_}; }
  ConstBuffer view() const { return {bytes_.data(), num_elements_, dtype_}; }
  std::vector<double> values() const {
    std::vector<double> values(static_cast<size_t>(num_elements_));
    convert(view(), {values.data(), num_elements_, DataType::kFloat64});
    return values;
  }
  Array as(DataType dtype) const {
    Array other(num_elements_, dtype);
    convert(view(), other.buffer());
    return other;
  }
  const Bytes& bytes() const { return bytes_; }
  Bytes& bytes() { return bytes_; }

 private:
  Bytes bytes_;
  int64_t num_elements_ = 0;
  DataType dtype_ = DataType::kByte;
};

// The same on a device, of no defined contents at first. offset: elements that lie before the first, whose address is
// aligned. Copies wait for the device.
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
  Array get() const {
    Array values(buffer_.num_elements, buffer_.dtype);
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
    const int64_t count = std::min(a.num_elements - begin, kAtATime);
    if (same_bytes(a.slice(begin, count), b.slice(begin, count))) {
      continue;
    }
    if (a.dtype == DataType::kByte) {
      const auto* bytes = a.as<uint8_t>();
      return std::mismatch(bytes + begin, bytes + begin + count, b.as<uint8_t>() + begin).first - bytes;
    }
    Array x(count, DataType::kFloat64);
    Array y(count, DataType::kFloat64);
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

inline std::vector<double> random_values(int64_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) {
    value = normal(generator);
  }
  return values;
}

// The squares of what values miss, as a share of what is expected.
template <typename Expected, typename Value>
double relative_error(const std::vector<Expected>& expected, const std::vector<Value>& values) {
  double error = 0;
  double energy = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += std::pow(static_cast<double>(expected[i]) - values[i], 2);
    energy += std::pow(expected[i], 2);
  }
  return error / energy;
}

// Half the distance between 1 and the next number of the type.
inline double unit_roundoff(DataType dtype) {
  switch (dtype) {
    case DataType::kBFloat16:
      return 0x1p-8;
    case DataType::kFloat16:
      return 0x1p-11;
    case DataType::kFloat32:
      return 0x1p-24;
    case DataType::kFloat64:
      return 0x1p-53;
    case DataType::kByte:
      break;
  }
  return 0;
}

}  // namespace isthmus::test
