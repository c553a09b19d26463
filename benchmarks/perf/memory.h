// Memory for elements of any type, seen as doubles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "isthmus/buffer.h"

namespace isthmus::perf {

class Memory {
 public:
  Memory(int64_t num_elements, DataType dtype)
      : bytes_(static_cast<size_t>(num_elements * element_bytes(dtype))), num_elements_(num_elements), dtype_(dtype) {}

  Buffer buffer() { return {bytes_.data(), num_elements_, dtype_}; }

  // value(index) in each element.
  template <typename Value>
  void fill(const Value& value) {
    std::vector<double> values(static_cast<size_t>(num_elements_));
    for (int64_t i = 0; i < num_elements_; ++i) {
      values[i] = value(i);
    }
    convert({values.data(), num_elements_, DataType::kFloat64}, buffer());
  }

 private:
  std::vector<std::byte> bytes_;
  int64_t num_elements_;
  DataType dtype_;
};

inline std::vector<double> values_of(ConstBuffer buffer) {
  std::vector<double> values(static_cast<size_t>(buffer.num_elements));
  convert(buffer, {values.data(), buffer.num_elements, DataType::kFloat64});
  return values;
}

}  // namespace isthmus::perf
