// Types of elements, as torch and as the core name them.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "isthmus/buffer.h"

namespace isthmus::torch_backend {

inline at::ScalarType scalar_type(DataType dtype) {
  switch (dtype) {
    case DataType::kByte:
      return at::kByte;
    case DataType::kFloat32:
      return at::kFloat;
    case DataType::kBFloat16:
      return at::kBFloat16;
    case DataType::kFloat16:
      return at::kHalf;
    case DataType::kFloat64:
      return at::kDouble;
  }
  return at::kByte;
}

// The type in which a tensor can be reduced by the two-tier path.
inline std::optional<DataType> floating_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kDouble:
      return DataType::kFloat64;
    default:  // torch has 40 more
      return std::nullopt;
  }
}

}  // namespace isthmus::torch_backend
