// Layout of a device's scratch memory, which the caller allocates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus {

// Cuts scratch memory into arrays. Without memory it only adds up the bytes needed.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  // Begins at a multiple of the elements' alignment, if the memory begins at one.
  template <typename T>
  T* take(int64_t count) {
    align(alignof(T));
    T* array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += count * static_cast<int64_t>(sizeof(T));
    return array;
  }
  // Makes the next array begin at a multiple of `alignment` bytes.
  void align(int64_t alignment = 64) { bytes_ = (bytes_ + alignment - 1) / alignment * alignment; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  int64_t bytes_ = 0;
};

}  // namespace isthmus
