// Typed views of memory that somebody else owns, and the element types that Isthmus moves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isthmus/error.h"

namespace isthmus {

enum class DataType : uint8_t {
  kByte,  // opaque bytes: moved, never summed, except bitwise and as small counters (see ReduceOp)
  kFloat32,
  kBFloat16,  // upper 16 bits of a float32
  kFloat16,   // IEEE binary16
  kFloat64,
};

inline int64_t element_bytes(DataType dtype) {
  switch (dtype) {
    case DataType::kByte:
      return 1;
    case DataType::kBFloat16:
    case DataType::kFloat16:
      return 2;
    case DataType::kFloat32:
      return 4;
    case DataType::kFloat64:
      return 8;
  }
  throw Error(detail::concatenate("unknown data type ", static_cast<int>(dtype)));
}
const char* to_string(DataType dtype);

// Sums of 16-bit types are accumulated in float32, sums of float64 in float64.
DataType accumulate_dtype(DataType dtype);

// A view of `num_elements` contiguous elements. It does not own the memory: the caller keeps it alive until the call,
// or the Handle that the call returned, has completed.
struct ConstBuffer {
  const void* data = nullptr;
  int64_t num_elements = 0;
  DataType dtype = DataType::kByte;

  int64_t bytes() const { return num_elements * element_bytes(dtype); }
  // The `index`-th part, where parts of `part_elements` elements each lie one after another.
  ConstBuffer part(int64_t index, int64_t part_elements) const { return slice(index * part_elements, part_elements); }
  // The `count` elements from element `begin` on.
  ConstBuffer slice(int64_t begin, int64_t count) const {
    return {static_cast<const std::byte*>(data) + begin * element_bytes(dtype), count, dtype};
  }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// A ConstBuffer that can be written.
struct Buffer {
  void* data = nullptr;
  int64_t num_elements = 0;
  DataType dtype = DataType::kByte;

  int64_t bytes() const { return num_elements * element_bytes(dtype); }
  Buffer part(int64_t index, int64_t part_elements) const { return slice(index * part_elements, part_elements); }
  Buffer slice(int64_t begin, int64_t count) const {
    return {static_cast<std::byte*>(data) + begin * element_bytes(dtype), count, dtype};
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  operator ConstBuffer() const { return {data, num_elements, dtype}; }
};

// The CUDA stream that orders an operation; null on the CPU, where operations run in the calling thread.
struct Stream {
  void* handle = nullptr;
};

// out[i] = in[i], converted (round to nearest, ties to even), between any two floating types or equal types. The
// buffers have the same number of elements and do not overlap, unless they are the same memory of the same type.
void convert(ConstBuffer in, Buffer out);

// out[i] = in[i] * scale. The product is taken in float32 (float64 where either side is float64) and rounded once.
void convert_scaled(ConstBuffer in, double scale, Buffer out);

// accumulator[i] += in[i], in the accumulator's type, which is accumulate_dtype(in.dtype).
void accumulate(ConstBuffer in, Buffer accumulator);

// What convert(first, sum) and then accumulate(second, sum) make of `sum`, in one pass over the memory. Both have one
// type, and the same memory is neither of them and `sum`.
void add(ConstBuffer first, ConstBuffer second, Buffer sum);

}  // namespace isthmus
