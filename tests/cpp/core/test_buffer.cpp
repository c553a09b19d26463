#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/error.h"
#include "tests/cpp/support/error_of.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <typename In, typename Out>
Out convert_one(In value, DataType in_dtype, DataType out_dtype) {
  Out result{};
  convert({&value, 1, in_dtype}, {&result, 1, out_dtype});
  return result;
}
uint16_t to_bits16(float value, DataType dtype) {
  return convert_one<float, uint16_t>(value, DataType::kFloat32, dtype);
}
uint16_t to_bits16(double value, DataType dtype) {
  return convert_one<double, uint16_t>(value, DataType::kFloat64, dtype);
}
float from_bits16(uint16_t bits, DataType dtype) {
  return convert_one<uint16_t, float>(bits, dtype, DataType::kFloat32);
}

// A 16-bit float by its definition.
struct Format {
  DataType dtype;
  int exponent_bits;
  int fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint16_t infinity() const { return static_cast<uint16_t>(((1 << exponent_bits) - 1) << fraction_bits); }

  double value(uint16_t bits) const {
    const int exponent = (bits & 0x7fff) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
      return fraction != 0 ? kNan : sign * kInfinity;
    }
    const int leading = exponent == 0 ? 0 : 1 << fraction_bits;
    return sign * std::ldexp(leading + fraction, std::max(exponent, 1) - bias() - fraction_bits);
  }
};

class Bits16 : public ::testing::TestWithParam<Format> {};

TEST_P(Bits16, EveryNumberReadsAsDefinedAndSurvivesTheWayBack) {
  const Format format = GetParam();
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto bits16 = static_cast<uint16_t>(bits);
    const float value = from_bits16(bits16, format.dtype);
    const double expected = format.value(bits16);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(from_bits16(to_bits16(value, format.dtype), format.dtype))) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(static_cast<float>(expected))) << bits;
      ASSERT_EQ(to_bits16(value, format.dtype), bits16);
    }
  }
}

// Between each two neighbours: their middle goes to the even one, and what is next to the middle to the nearer one.
TEST_P(Bits16, RoundsToNearestEvenBetweenAllNeighbours) {
  const Format format = GetParam();
  for (int bits = 0; bits < format.infinity(); ++bits) {
    const auto low = static_cast<uint16_t>(bits);
    const auto high = static_cast<uint16_t>(bits + 1);
    const double next = high == format.infinity() ? std::ldexp(1.0, format.bias() + 1) : format.value(high);
    const double middle = (format.value(low) + next) / 2;
    const auto middle32 = static_cast<float>(middle);
    const uint16_t even = (low & 1) == 0 ? low : high;
    if (static_cast<double>(middle32) == middle) {
      ASSERT_EQ(to_bits16(middle32, format.dtype), even) << bits;
      ASSERT_EQ(to_bits16(std::nextafterf(middle32, 0), format.dtype), low) << bits;
      ASSERT_EQ(to_bits16(std::nextafterf(middle32, HUGE_VALF), format.dtype), high) << bits;
      ASSERT_EQ(to_bits16(-std::nextafterf(middle32, 0), format.dtype), low | 0x8000) << bits;
    }
    ASSERT_EQ(to_bits16(middle, format.dtype), even) << bits;
    // These two differ from the middle by less than float32 resolves: rounding twice would get them wrong.
    ASSERT_EQ(to_bits16(std::nextafter(middle, 0), format.dtype), low) << bits;
    ASSERT_EQ(to_bits16(std::nextafter(middle, kInfinity), format.dtype), high) << bits;
  }
}

TEST_P(Bits16, ExtremesOfWiderTypes) {
  const Format format = GetParam();
  EXPECT_EQ(to_bits16(kInfinity, format.dtype), format.infinity());
  EXPECT_EQ(to_bits16(-kInfinity, format.dtype), format.infinity() | 0x8000);
  EXPECT_EQ(to_bits16(std::numeric_limits<float>::max(), format.dtype), format.infinity());
  EXPECT_EQ(to_bits16(std::numeric_limits<double>::max(), format.dtype), format.infinity());
  EXPECT_EQ(to_bits16(std::numeric_limits<double>::denorm_min(), format.dtype), 0);
  EXPECT_EQ(to_bits16(-0.0f, format.dtype), 0x8000);
  EXPECT_TRUE(std::isnan(from_bits16(to_bits16(kNan, format.dtype), format.dtype)));
  // A NaN whose payload sits in the bits that are cut off must not become Inf.
  EXPECT_TRUE(std::isnan(from_bits16(to_bits16(std::bit_cast<float>(0x7f800001u), format.dtype), format.dtype)));
  EXPECT_TRUE(std::isnan(from_bits16(to_bits16(std::bit_cast<float>(0xffffffffu), format.dtype), format.dtype)));
}

// Whatever bits it had: a GPU's sums and conversions know no others.
TEST(Float16, EveryNanBecomesTheOneOfGpus) {
  for (const uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fc00000U, 0xffc00000U, 0x7fc12000U, 0xffffffffU}) {
    EXPECT_EQ(to_bits16(std::bit_cast<float>(bits), DataType::kFloat16), 0x7fff) << bits;
    EXPECT_EQ(to_bits16(static_cast<double>(std::bit_cast<float>(bits)), DataType::kFloat16), 0x7fff) << bits;
  }
  for (const uint16_t bits : {0x7c01, 0xfc01, 0x7e00, 0xfe00, 0x7fff, 0xffff}) {
    EXPECT_EQ(std::bit_cast<uint32_t>(from_bits16(bits, DataType::kFloat16)), 0x7fffffffU) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Bits16,
                         ::testing::Values(Format{DataType::kBFloat16, 8, 7}, Format{DataType::kFloat16, 5, 10}),
                         [](const auto& parameter) { return to_string(parameter.param.dtype); });

TEST(Buffer, ElementsAndParts) {
  std::vector<float> data(12);
  const Buffer buffer{data.data(), 12, DataType::kFloat32};
  EXPECT_EQ(buffer.bytes(), 48);
  EXPECT_EQ(buffer.part(2, 4).data, &data[8]);
  EXPECT_EQ(buffer.slice(5, 3).data, &data[5]);
  EXPECT_EQ(buffer.slice(5, 3).num_elements, 3);
  EXPECT_EQ(ConstBuffer(buffer).part(1, 6).data, &data[6]);
  EXPECT_EQ(accumulate_dtype(DataType::kBFloat16), DataType::kFloat32);
  EXPECT_EQ(accumulate_dtype(DataType::kFloat64), DataType::kFloat64);
}

TEST(Buffer, ConvertsEveryPairOfTypesAtEveryLength) {
  for (const DataType from : kFloatingTypes) {
    for (const DataType to : kFloatingTypes) {
      for (const int64_t count : {0, 1, 7, 8, 33}) {
        std::vector<double> values;
        for (int64_t i = 0; i < count; ++i) {
          values.push_back(static_cast<double>(i) * (i % 2 == 0 ? 1 : -0.5));  // exact in every type
        }
        const Array in(values, from);
        Array out(count, to);
        convert(in.view(), out.buffer());
        EXPECT_EQ(out.values(), values) << to_string(from) << " to " << to_string(to) << ", " << count;
      }
    }
  }
}

TEST(Buffer, ConvertsBytesOnlyToBytes) {
  const std::vector<uint8_t> in = {1, 255, 3};
  std::vector<uint8_t> out(3);
  convert({in.data(), 3, DataType::kByte}, {out.data(), 3, DataType::kByte});
  EXPECT_EQ(out, in);
  std::vector<float> floats(3);
  EXPECT_THROW(convert({in.data(), 3, DataType::kByte}, {floats.data(), 3, DataType::kFloat32}), Error);
}

TEST(Buffer, ScalesInFloat32AndRoundsOnce) {
  const std::vector<float> in = {3, -1, 0x1p-140f};
  std::vector<float> out(3);
  convert_scaled({in.data(), 3, DataType::kFloat32}, 1.0 / 3, {out.data(), 3, DataType::kFloat32});
  const auto third = static_cast<float>(1.0 / 3);
  EXPECT_EQ(out, (std::vector<float>{3 * third, -third, 0x1p-140f * third}));

  // 257 / 2 is no bfloat16; the product is rounded, not the factor 257.
  std::vector<uint16_t> half(1);
  const std::vector<float> odd = {257};
  convert_scaled({odd.data(), 1, DataType::kFloat32}, 0.5, {half.data(), 1, DataType::kBFloat16});
  EXPECT_EQ(from_bits16(half[0], DataType::kBFloat16), 128.0f);  // 128.5: tie to even
}

TEST(Buffer, ScalesInFloat64WhereOneSideIsFloat64) {
  const std::vector<double> in = {1 + 0x1p-40};
  std::vector<double> out(1);
  convert_scaled({in.data(), 1, DataType::kFloat64}, 1.0 / 3, {out.data(), 1, DataType::kFloat64});
  EXPECT_EQ(out[0], in[0] * (1.0 / 3));
  const std::vector<float> single = {3};
  convert_scaled({single.data(), 1, DataType::kFloat32}, 1.0 / 3, {out.data(), 1, DataType::kFloat64});
  EXPECT_EQ(out[0], 3 * (1.0 / 3));
}

TEST(Buffer, AccumulatesIn32BitsFor16BitTypes) {
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    const Array one({1, 1}, dtype);
    std::vector<float> sum = {2048, 0x1p23f};  // 1 is lost here in 16 bits
    accumulate(one.view(), {sum.data(), 2, DataType::kFloat32});
    EXPECT_EQ(sum, (std::vector<float>{2049, 0x1p23f + 1})) << to_string(dtype);
  }
}

TEST(Buffer, AccumulatesFloat64InFloat64) {
  const std::vector<double> in = {0x1p-50};
  std::vector<double> sum = {1};
  accumulate({in.data(), 1, DataType::kFloat64}, {sum.data(), 1, DataType::kFloat64});
  EXPECT_EQ(sum[0], 1 + 0x1p-50);
}

TEST(Buffer, AddsWhatConvertAndAccumulateGive) {
  for (const DataType dtype : kFloatingTypes) {
    for (const int64_t count : {0, 1, 67}) {
      const Array first(random_values(count, 1), dtype);
      const Array second(random_values(count, 2), dtype);
      Array expected(count, accumulate_dtype(dtype));
      convert(first.view(), expected.buffer());
      accumulate(second.view(), expected.buffer());
      Array sum(count, accumulate_dtype(dtype));
      add(first.view(), second.view(), sum.buffer());
      EXPECT_TRUE(sum.bytes() == expected.bytes()) << count << " of " << to_string(dtype);
    }
  }
}

TEST(Buffer, NamesMismatches) {
  std::vector<float> a(4);
  std::vector<double> b(4);
  EXPECT_THROW(convert({a.data(), 4, DataType::kFloat32}, {b.data(), 3, DataType::kFloat64}), Error);
  EXPECT_THROW(convert_scaled({a.data(), 4, DataType::kFloat32}, 1, {b.data(), 3, DataType::kFloat64}), Error);
  EXPECT_EQ(error_of([&] {
              accumulate({a.data(), 4, DataType::kFloat32}, {b.data(), 4, DataType::kFloat64});
            }),
            "accumulate: float32 into float64, which must be float32");
  const ConstBuffer four{a.data(), 4, DataType::kFloat32};
  EXPECT_THROW(add(four, {b.data(), 4, DataType::kFloat64}, {a.data(), 4, DataType::kFloat32}), Error);
  EXPECT_THROW(add(four, four, {b.data(), 4, DataType::kFloat64}), Error);
  EXPECT_THROW(add(four, four.slice(0, 3), {a.data(), 4, DataType::kFloat32}), Error);
  EXPECT_THROW(accumulate({a.data(), 4, DataType::kByte}, {b.data(), 4, DataType::kByte}), Error);
}

}  // namespace
}  // namespace isthmus::test
