#include "isthmus/buffer.h"

#include <cstring>
#include <type_traits>

#include "isthmus/error.h"
#include "kernels/block/float_types.h"

namespace isthmus {

const char* to_string(DataType dtype) {
  switch (dtype) {
    case DataType::kByte:
      return "byte";
    case DataType::kFloat32:
      return "float32";
    case DataType::kBFloat16:
      return "bfloat16";
    case DataType::kFloat16:
      return "float16";
    case DataType::kFloat64:
      return "float64";
  }
  return "unknown";
}

DataType accumulate_dtype(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
    case DataType::kBFloat16:
    case DataType::kFloat16:
      return DataType::kFloat32;
    case DataType::kByte:
    case DataType::kFloat64:
      return dtype;
  }
  throw Error(detail::concatenate("unknown data type ", static_cast<int>(dtype)));
}

namespace {

// with_floating_type(), for arithmetic alone: bytes are an error.
template <typename Visitor>
void with_number_type(DataType dtype, const Visitor& visit) {
  ISTHMUS_CHECK(Error, with_floating_type(dtype, visit), "no arithmetic on elements of type ", to_string(dtype));
}

template <typename In, typename Out>
void convert_loop(const In* __restrict in, Out* __restrict out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = narrow<Out>(widen(in[i]));
  }
}

// No __restrict, because `in` and `out` may be the same memory.
template <typename In, typename Out>
void scale_loop(const In* in, double scale, Out* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = scaled<Out>(in[i], scale);
  }
}

template <typename In, typename Sum>
void accumulate_loop(const In* __restrict in, Sum* __restrict sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    sum[i] += static_cast<Sum>(widen(in[i]));
  }
}

template <typename In, typename Sum>
void add_loop(const In* __restrict first, const In* __restrict second, Sum* __restrict sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    sum[i] = static_cast<Sum>(widen(first[i])) + static_cast<Sum>(widen(second[i]));
  }
}

void check_equal_length(const char* what, ConstBuffer in, ConstBuffer out) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements, what, ": ", in.num_elements, " elements into ",
                out.num_elements);
}

template <typename In>
using SumOf = std::conditional_t<std::is_same_v<In, double>, double, float>;

void check_sum(const char* what, ConstBuffer in, ConstBuffer sum) {
  check_equal_length(what, in, sum);
  ISTHMUS_CHECK(Error, sum.dtype == accumulate_dtype(in.dtype), what, ": ", to_string(in.dtype), " into ",
                to_string(sum.dtype), ", which must be ", to_string(accumulate_dtype(in.dtype)));
}

}  // namespace

void convert(ConstBuffer in, Buffer out) {
  check_equal_length("convert", in, out);
  if (in.num_elements == 0 || (in.dtype == out.dtype && in.data == out.data)) {
    return;
  }
  if (in.dtype == out.dtype) {
    std::memcpy(out.data, in.data, static_cast<size_t>(in.bytes()));
    return;
  }
  with_number_type(in.dtype, [&]<typename In>(In) {
    with_number_type(out.dtype, [&]<typename Out>(Out) { convert_loop(in.as<In>(), out.as<Out>(), in.num_elements); });
  });
}

void convert_scaled(ConstBuffer in, double scale, Buffer out) {
  check_equal_length("convert_scaled", in, out);
  with_number_type(in.dtype, [&]<typename In>(In) {
    with_number_type(out.dtype,
                     [&]<typename Out>(Out) { scale_loop(in.as<In>(), scale, out.as<Out>(), in.num_elements); });
  });
}

void accumulate(ConstBuffer in, Buffer accumulator) {
  check_sum("accumulate", in, accumulator);
  with_number_type(
      in.dtype, [&]<typename In>(In) { accumulate_loop(in.as<In>(), accumulator.as<SumOf<In>>(), in.num_elements); });
}

void add(ConstBuffer first, ConstBuffer second, Buffer sum) {
  check_sum("add", first, sum);
  check_sum("add", second, sum);
  ISTHMUS_CHECK(Error, first.dtype == second.dtype, "add: ", to_string(first.dtype), " and ", to_string(second.dtype));
  with_number_type(first.dtype, [&]<typename In>(In) {
    add_loop(first.as<In>(), second.as<In>(), sum.as<SumOf<In>>(), sum.num_elements);
  });
}

}  // namespace isthmus
