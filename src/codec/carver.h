// Layout of a device's scratch memory, which the caller allocates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus {

// Cuts scratch memory into arrays. Without memory it only adds up the bytes needed.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  template <typename T>
  T* take(int64_t count) {
    T* array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += count * static_cast<int64_t>(sizeof(T));
    return array;
  }
  // The next array begins at a multiple of 64 bytes.
  void align() { bytes_ = (bytes_ + 63) / 64 * 64; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  int64_t bytes_ = 0;
};

}  // namespace isthmus
