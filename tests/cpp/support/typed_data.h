// Arrays of any element type, seen as doubles.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "isthmus/buffer.h"

namespace isthmus::test {

inline const std::vector<DataType> kFloatingTypes = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16,
                                                     DataType::kFloat64};

// Owns elements of one type. Values are rounded to the type when they are set.
class Array {
 public:
  Array() = default;
  Array(int64_t num_elements, DataType dtype)
      : bytes_(static_cast<size_t>(num_elements * element_bytes(dtype))), num_elements_(num_elements), dtype_(dtype) {}
  Array(const std::vector<double>& values, DataType dtype) : Array(static_cast<int64_t>(values.size()), dtype) {
    convert({values.data(), num_elements_, DataType::kFloat64}, buffer());
  }

  Buffer buffer() { return {bytes_.data(), num_elements_, dtype_}; }
  ConstBuffer view() const { return {bytes_.data(), num_elements_, dtype_}; }
  std::vector<double> values() const {
    std::vector<double> values(static_cast<size_t>(num_elements_));
    convert(view(), {values.data(), num_elements_, DataType::kFloat64});
    return values;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  int64_t num_elements_ = 0;
  DataType dtype_ = DataType::kByte;
};

inline std::vector<double> random_values(int64_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) {
    value = normal(generator);
  }
  return values;
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
