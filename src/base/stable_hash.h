// A hash that stays equal over processes, restarts, and machines of one byte order. std::hash does not promise this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace isthmus {

// FNV-1a, 64 bits.
class StableHash {
 public:
  StableHash& add(std::string_view text) { return add_bytes(text.data(), text.size()); }

  template <typename T>
  requires std::is_integral_v<T> || std::is_enum_v<T> StableHash& add(T value) {
    return add_bytes(&value, sizeof(value));
  }

  uint64_t value() const { return state_; }

 private:
  StableHash& add_bytes(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      state_ = (state_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
    }
    return *this;
  }

  uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace isthmus
