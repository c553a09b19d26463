// The own piece and the shard of a decoding, by single elements or several neighbours. Their type, float32 or one of 16
// bits, is known only from the job. All threads branch alike.
#pragma once

#include "kernels/block/float_types.h"
#include "kernels/block/job.h"
#include "kernels/block/passes.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

ISTHMUS_DEVICE float load_value(const ConstBuffer& buffer, int64_t i) {
  switch (buffer.dtype) {
    case DataType::kBFloat16:
      return widen(static_cast<const BFloat16*>(buffer.data)[i]);
    case DataType::kFloat16:
      return widen(static_cast<const Float16*>(buffer.data)[i]);
    default:
      return static_cast<const float*>(buffer.data)[i];
  }
}
// value * scale, as scaled().
ISTHMUS_DEVICE void store_scaled(float value, double scale, const Buffer& buffer, int64_t i) {
  switch (buffer.dtype) {
    case DataType::kBFloat16:
      static_cast<BFloat16*>(buffer.data)[i] = scaled<BFloat16>(value, scale);
      return;
    case DataType::kFloat16:
      static_cast<Float16*>(buffer.data)[i] = scaled<Float16>(value, scale);
      return;
    default:
      static_cast<float*>(buffer.data)[i] = scaled<float>(value, scale);
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
  switch (buffer.dtype) {
    case DataType::kBFloat16:
      return load_neighbours<kCount>(static_cast<const BFloat16*>(buffer.data) + first, num_left);
    case DataType::kFloat16:
      return load_neighbours<kCount>(static_cast<const Float16*>(buffer.data) + first, num_left);
    default:
      return load_neighbours<kCount>(static_cast<const float*>(buffer.data) + first, num_left);
  }
}
// Stores each value times scale, as scaled(), but nothing after the last.
template <int kCount>
ISTHMUS_DEVICE void store_scaled_values(const SeveralOf<float, kCount>& values, double scale, const Buffer& buffer,
                                        int64_t first) {
  const int64_t num_left = buffer.num_elements - first;
  switch (buffer.dtype) {
    case DataType::kBFloat16:
      return store_neighbours(values, scale, static_cast<BFloat16*>(buffer.data) + first, num_left);
    case DataType::kFloat16:
      return store_neighbours(values, scale, static_cast<Float16*>(buffer.data) + first, num_left);
    default:
      return store_neighbours(values, scale, static_cast<float*>(buffer.data) + first, num_left);
  }
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
