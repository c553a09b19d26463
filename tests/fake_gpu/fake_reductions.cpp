#include <algorithm>
#include <type_traits>

#include "fake_operations.h"
#include "fake_runtime.h"
#include "kernels/block/float_types.h"

namespace isthmus::fake_gpu {
namespace {

template <typename T>
constexpr bool kIsShort = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

template <typename T>
auto load(const void* values, int64_t i) {
  const T value = static_cast<const T*>(values)[i];
  if constexpr (kIsShort<T>) {
    return to_float32(value);
  } else {
    return value;
  }
}

template <typename T, typename Wide>
T store(Wide value) {
  if constexpr (kIsShort<T>) {
    return narrow<T>(value);
  } else {
    return value;
  }
}

template <typename Wide>
Wide combine(ncclRedOp_t op, Wide a, Wide b) {
  switch (op) {
    case ncclProd:
      return a * b;
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return a + b;  // ncclSum, ncclAvg, ncclRedOpCreatePreMulSum()
  }
}

template <typename T>
void reduce_as(const std::vector<Summand>& summands, ncclRedOp_t op, int64_t count, void* out) {
  using Wide = decltype(load<T>(nullptr, 0));
  const auto summand = [](const Summand& from, int64_t i) {
    const Wide value = load<T>(from.values, i);
    return std::is_floating_point_v<Wide> ? static_cast<Wide>(value * static_cast<Wide>(from.factor)) : value;
  };
  for (int64_t i = 0; i < count; ++i) {
    Wide result = summand(summands[0], i);
    for (size_t rank = 1; rank < summands.size(); ++rank) {
      result = combine(op, result, summand(summands[rank], i));
    }
    if (op == ncclAvg) {
      result /= static_cast<Wide>(summands.size());
    }
    static_cast<T*>(out)[i] = store<T>(result);
  }
}

// Calls visit(T{}) with the C++ type.
template <typename Visit>
auto with_type(ncclDataType_t dtype, Visit visit) {
  switch (dtype) {
    case ncclInt8:
      return visit(int8_t{});
    case ncclUint8:
      return visit(uint8_t{});
    case ncclInt32:
      return visit(int32_t{});
    case ncclUint32:
      return visit(uint32_t{});
    case ncclInt64:
      return visit(int64_t{});
    case ncclUint64:
      return visit(uint64_t{});
    case ncclFloat16:
      return visit(Float16{});
    case ncclFloat32:
      return visit(float{});
    case ncclFloat64:
      return visit(double{});
    case ncclBfloat16:
      return visit(BFloat16{});
    default:
      give_up("NCCL: no arithmetic for type %d", dtype);
  }
}

}  // namespace

size_t bytes_of(ncclDataType_t dtype) {
  if (dtype == ncclFloat8e4m3 || dtype == ncclFloat8e5m2) {
    return 1;
  }
  return with_type(dtype, []<typename T>(T) { return sizeof(T); });
}

double read_scalar(const void* scalar, ncclDataType_t dtype) {
  return with_type(dtype, [&]<typename T>(T) { return static_cast<double>(load<T>(scalar, 0)); });
}

void reduce(const std::vector<Summand>& summands, ncclRedOp_t op, ncclDataType_t dtype, int64_t count, void* out) {
  with_type(dtype, [&]<typename T>(T) { reduce_as<T>(summands, op, count, out); });
}

}  // namespace isthmus::fake_gpu
