// What the jobs of a device have in common, whatever they code: checks of memory, and the layout of scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/packet_sizes.h"
#include "isthmus/packet_header.h"
#include "kernels/block/device.h"
#include "kernels/block/job.h"

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
  void align(int64_t alignment = 64) { bytes_ = round_up(bytes_, alignment); }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  int64_t bytes_ = 0;
};

// Throws Error if the memory is too small or does not begin at a multiple of `alignment` bytes.
void check_device_memory(const char* codec, const char* what, ConstBuffer buffer, int64_t needed, uintptr_t alignment);

// The piece as check_float32_piece() requires it: as float32, though devices also accept 16-bit types.
ConstBuffer widened(ConstBuffer piece);

// Carves out the scratch memory that jobs of every codec need.
void carve_shared(Carver& carver, kernels::EncodeJobBase& job);
void carve_shared(Carver& carver, kernels::DecodeJobBase& job);

// "its padding is not zero": what an error says of a corrupt packet.
const char* text_of(kernels::FaultKind kind);

kernels::HeaderWords header_words(const PacketHeader& header);

// Throws the PacketError that the CPU would have thrown, if `fault` reports one. `fault` is a copy in host memory.
void throw_if_reported(const kernels::DeviceFault& fault);

}  // namespace isthmus
