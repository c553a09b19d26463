// The own piece and the shard of a decoding, by neighbours. Their type, float32 or one of 16 bits, is known only from
// the job. All threads branch alike.
#pragma once

#include "kernels/block/float_types.h"
#include "kernels/block/job.h"
#include "kernels/block/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// Calls visit(T{}) with the C++ type of the values.
template <typename Visit>
ISTHMUS_DEVICE auto with_value_type(DataType dtype, const Visit& visit) {
  switch (dtype) {
    case DataType::kBFloat16:
      return visit(BFloat16{});
    case DataType::kFloat16:
      return visit(Float16{});
    default:
      return visit(float{});
  }
}

// Loads all at once if all exist and the address allows it.
template <int kCount, typename T>
ISTHMUS_DEVICE SeveralOf<float, kCount> load_neighbours(const T* values, int64_t num_left) {
  using Several = SeveralOf<T, kCount>;
  SeveralOf<float, kCount> result = {};
  if (num_left >= kCount && is_aligned(values, alignof(Several))) {
    const Several loaded = *reinterpret_cast<const Several*>(values);
    ISTHMUS_UNROLL
    for (int i = 0; i < kCount; ++i) {
      result.value[i] = widen(loaded.value[i]);
    }
    return result;
  }
  for (int i = 0; i < kCount && i < num_left; ++i) {
    result.value[i] = widen(values[i]);
  }
  return result;
}
template <int kCount, typename T>
ISTHMUS_DEVICE void store_neighbours(const SeveralOf<float, kCount>& given, double scale, T* values, int64_t num_left) {
  using Several = SeveralOf<T, kCount>;
  if (num_left >= kCount && is_aligned(values, alignof(Several))) {
    Several result;
    ISTHMUS_UNROLL
    for (int i = 0; i < kCount; ++i) {
      result.value[i] = scaled<T>(given.value[i], scale);
    }
    *reinterpret_cast<Several*>(values) = result;
    return;
  }
  for (int i = 0; i < kCount && i < num_left; ++i) {
    values[i] = scaled<T>(given.value[i], scale);
  }
}

// kCount values from `first` on, with zeros after the last and where there is no memory.
template <int kCount>
ISTHMUS_DEVICE SeveralOf<float, kCount> load_values(const ConstBuffer& buffer, int64_t first) {
  const int64_t num_left = buffer.num_elements - first;
  if (buffer.data == nullptr) {
    return {};
  }
  return with_value_type(buffer.dtype, [&]<typename T>(T) {
    return load_neighbours<kCount>(static_cast<const T*>(buffer.data) + first, num_left);
  });
}
// Stores each value times scale, as scaled(), but nothing after the last.
template <int kCount>
ISTHMUS_DEVICE void store_scaled_values(const SeveralOf<float, kCount>& values, double scale, const Buffer& buffer,
                                        int64_t first) {
  const int64_t num_left = buffer.num_elements - first;
  with_value_type(buffer.dtype, [&]<typename T>(T) {
    store_neighbours(values, scale, static_cast<T*>(buffer.data) + first, num_left);
  });
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
