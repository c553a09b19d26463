// How a fuzzer's bytes become a test case: they are read as decisions, in order; past their end all decisions are 0.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace isthmus::fuzz {

class Decisions {
 public:
  Decisions(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }

  template <typename T>
  T take() {
    T value{};
    const size_t bytes = std::min(sizeof(T), size_);
    std::memcpy(&value, data_, bytes);
    skip(bytes);
    return value;
  }

  // One of 0 ... count - 1.
  int64_t choose(int64_t count) { return static_cast<int64_t>(take<uint16_t>()) % count; }

  // 0 ... most, and most often few, which are fast to work on.
  int64_t choose_size(int64_t most) {
    constexpr int64_t kFew = 300;
    return choose(8) == 7 ? choose(most + 1) : choose(std::min(kFew, most) + 1);
  }

  std::vector<uint8_t> rest() {
    std::vector<uint8_t> bytes(data_, data_ + size_);
    skip(size_);
    return bytes;
  }

 private:
  void skip(size_t bytes) {
    data_ += bytes;
    size_ -= bytes;
  }

  const uint8_t* data_;
  size_t size_;
};

}  // namespace isthmus::fuzz
