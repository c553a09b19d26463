// Arithmetic on buffers as a device does it, on emulated groups, against buffer.cpp: bit for bit.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "codec/squared_error.h"
#include "isthmus/device.h"
#include "kernels/values/sequence.h"
#include "tests/cpp/emulated/emulated_device.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus {
namespace {

using test::Array;
using test::EmulatedDevice;
using test::kFloatingTypes;
using test::random_values;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// None, one, less than a run of neighbours, exactly one, more, and many turns of all groups.
constexpr int64_t kCounts[] = {0, 1, 3, 7, 8, 9, 255, 1024, 4099};

// A buffer that begins `offset` elements behind a multiple of 64 bytes, with guards on both sides.
class Placed {
 public:
  Placed(int64_t num_elements, DataType dtype, int64_t offset)
      : memory_(num_elements * element_bytes(dtype) / sizeof(Line) + 4), num_elements_(num_elements), dtype_(dtype) {
    std::memset(memory_.data(), 0xa5, sizeof(Line) * memory_.size());
    first_ = reinterpret_cast<std::byte*>(memory_.data() + 1) + offset * element_bytes(dtype);
  }
  Placed(const Array& values, int64_t offset) : Placed(values.view().num_elements, values.view().dtype, offset) {
    convert(values.view(), buffer());
  }
  Buffer buffer() { return {first_, num_elements_, dtype_}; }
  // The guards too.
  std::vector<std::byte> bytes() const {
    const auto* begin = reinterpret_cast<const std::byte*>(memory_.data());
    return {begin, begin + sizeof(Line) * memory_.size()};
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory_;
  std::byte* first_;
  int64_t num_elements_;
  DataType dtype_;
};

// What all types round, saturate or turn into denormals, then random values.
Array test_values(int64_t count, DataType dtype) {
  std::vector<double> values = random_values(count, 11);
  const std::vector<double> special = {0.0,  -0.0,  kInfinity, -kInfinity, kNan, 65504, 65519, 65520,        1e-7,
                                       6e-8, 1e-40, 1e-320,    3e38,       4e38, 1e300, -3e38, 1.0009765625, 0x1p-133};
  for (size_t i = 0; i < special.size() && i < values.size(); ++i) {
    values[values.size() - 1 - i] = special[i];
  }
  return {values, dtype};
}

// Calls check(in, expected, out, device): both results are equally dirty, and must be equal in the end.
template <typename Check>
void for_all_types_sizes_and_places(const Check& check) {
  for (const DataType from : kFloatingTypes) {
    for (const DataType to : kFloatingTypes) {
      for (const int64_t count : kCounts) {
        for (const auto& [in_offset, out_offset] : {std::pair{0, 0}, {1, 0}, {0, 3}, {8, 8}}) {
          SCOPED_TRACE(testing::Message() << to_string(from) << " to " << to_string(to) << ", " << count << " at "
                                          << in_offset << " and " << out_offset);
          Placed in(test_values(count, from), in_offset);
          Placed expected(count, to, out_offset);
          Placed out = Placed(count, to, out_offset);
          EmulatedDevice device(37, 3, 1);
          check(in.buffer(), expected.buffer(), out.buffer(), device);
          ASSERT_EQ(out.bytes(), expected.bytes());
        }
      }
    }
  }
}

TEST(ValuesDevice, ConvertsAsTheCpu) {
  for_all_types_sizes_and_places([](ConstBuffer in, Buffer expected, Buffer out, EmulatedDevice& device) {
    convert(in, expected);
    kernels::emulated::convert(device, in, out);
  });
}

TEST(ValuesDevice, ScalesAsTheCpu) {
  for (const double scale : {1.0 / 3, 1.0, 1e10}) {
    for_all_types_sizes_and_places([&](ConstBuffer in, Buffer expected, Buffer out, EmulatedDevice& device) {
      convert_scaled(in, scale, expected);
      kernels::emulated::convert_scaled(device, in, scale, out);
    });
  }
}

TEST(ValuesDevice, ScalesInPlace) {
  for (const DataType dtype : kFloatingTypes) {
    Placed expected(test_values(1000, dtype), 0);
    Placed out(test_values(1000, dtype), 0);
    convert_scaled(expected.buffer(), 0.7, expected.buffer());
    EmulatedDevice device(37, 3, 1);
    kernels::emulated::convert_scaled(device, out.buffer(), 0.7, out.buffer());
    EXPECT_EQ(out.bytes(), expected.bytes()) << to_string(dtype);
  }
}

TEST(ValuesDevice, MultipliesAsTheCpuAndLimits) {
  const std::shared_ptr<Device> host = make_host_device();
  for (const double factor : {0.3, 1e3, 1e60}) {
    for (const int64_t count : kCounts) {
      Placed expected(test_values(count, DataType::kFloat32), 1);
      Placed out(test_values(count, DataType::kFloat32), 1);
      host->multiply(expected.buffer(), factor, {});
      EmulatedDevice device(37, 3, 1);
      kernels::emulated::multiply(device, out.buffer(), factor);
      EXPECT_EQ(out.bytes(), expected.bytes()) << factor << " times " << count;
    }
  }
}

TEST(ValuesDevice, AddsAsTheCpu) {
  for (const int64_t count : kCounts) {
    for (const auto& [values_offset, sum_offset] : {std::pair{0, 0}, {1, 0}, {0, 3}}) {
      Placed values(test_values(count, DataType::kFloat32), values_offset);
      const Array start(random_values(count, 12), DataType::kFloat32);
      Placed expected(start, sum_offset);
      Placed sum(start, sum_offset);
      accumulate(values.buffer(), expected.buffer());
      EmulatedDevice device(37, 3, 1);
      kernels::emulated::add(device, values.buffer(), sum.buffer());
      EXPECT_EQ(sum.bytes(), expected.bytes()) << count << " at " << values_offset << " and " << sum_offset;
    }
  }
}

// Adds what the CPU adds, and what `device` does, to totals that are not zero.
struct SquaredErrors {
  SquaredError host;
  SquaredError device;

  SquaredErrors() { host.given = host.dropped = device.given = device.dropped = 1000; }

  void add(Placed& given, Placed& decoded, EmulatedDevice& emulated) {
    const auto error = std::shared_ptr<SquaredError>(std::shared_ptr<void>(), &host);
    make_host_device()->add_squared_error(given.buffer(), decoded.buffer(), error, {});
    std::vector<double> scratch(kSquaredErrorScratchBytes / sizeof(double), kNan);
    kernels::emulated::add_squared_error(
        emulated, make_squared_error_job(given.buffer(), decoded.buffer(), &device,
                                         {scratch.data(), kSquaredErrorScratchBytes, DataType::kByte}));
  }
};

// Small integers, so that the order of additions does not matter, and what must not be counted.
TEST(ValuesDevice, SquaredErrorsAreThoseOfTheCpu) {
  for (const int64_t count : {0, 1, 3, 4, 5, 255, 1024, 4099, 20001}) {
    for (const auto& [given_offset, decoded_offset] : {std::pair{0, 0}, {1, 1}, {0, 3}}) {
      std::vector<double> given;
      std::vector<double> decoded;
      for (int64_t i = 0; i < count; ++i) {
        given.push_back(static_cast<double>(i * 7 % 31 - 15));
        decoded.push_back(static_cast<double>(i * 5 % 23 - 11));
      }
      if (count > 4) {
        given[1] = kNan;
        decoded[2] = -kInfinity;
        given.back() = decoded.back() = kInfinity;
      }
      Placed placed_given(Array(given, DataType::kFloat32), given_offset);
      Placed placed_decoded(Array(decoded, DataType::kFloat32), decoded_offset);
      for (const int64_t num_threads : {1, 2, 37, 256}) {
        SquaredErrors errors;
        EmulatedDevice device(num_threads, 3, 1);
        errors.add(placed_given, placed_decoded, device);
        errors.add(placed_decoded, placed_given, device);
        EXPECT_EQ(errors.device.given, errors.host.given) << count;
        EXPECT_EQ(errors.device.dropped, errors.host.dropped) << count;
        EXPECT_EQ(device.num_passes(), count == 0 ? 0 : 4);
      }
    }
  }
}

// However many groups run at once, and in whatever order.
TEST(ValuesDevice, SquaredErrorsDoNotDependOnTheDevice) {
  Placed given(Array(random_values(50000, 1), DataType::kFloat32), 0);
  Placed decoded(Array(random_values(50000, 2), DataType::kFloat32), 0);
  std::set<std::pair<double, double>> results;
  double expected = 0;
  for (const int64_t max_groups : {1, 2, 5, 64}) {
    SquaredErrors errors;
    EmulatedDevice device(32, max_groups, static_cast<uint32_t>(max_groups));
    errors.add(given, decoded, device);
    results.emplace(errors.device.given, errors.device.dropped);
    expected = errors.host.dropped;
  }
  EXPECT_EQ(results.size(), 1U);
  EXPECT_NEAR(results.begin()->second, expected, 1e-10 * expected);
}

// For ThreadSanitizer.
TEST(ValuesDevice, SquaredErrorsOfThreadsAtOnce) {
  Placed given(Array(random_values(3000, 1), DataType::kFloat32), 0);
  Placed decoded(Array(random_values(3000, 2), DataType::kFloat32), 0);
  SquaredErrors errors;
  EmulatedDevice device(5, 2, 1, EmulatedDevice::Threads::kAtOnce);
  errors.add(given, decoded, device);
  EXPECT_NEAR(errors.device.dropped, errors.host.dropped, 1e-10 * errors.host.dropped);
}

TEST(ValuesDevice, CountsWhatSkippedStepsKept) {
  kernels::DeviceCounts counts;
  EmulatedDevice device(32, 1, 1);
  const auto step = [&](uint64_t kept, bool is_skipped) {
    counts.kept_elements += kept;
    kernels::emulated::end_step(device, &counts, is_skipped);
  };
  step(10, false);
  EXPECT_EQ(counts.skipped_elements, 0U);
  step(5, true);
  EXPECT_EQ(counts.skipped_elements, 5U);
  step(7, false);
  step(2, true);
  EXPECT_EQ(counts.skipped_elements, 7U);
  step(0, true);
  EXPECT_EQ(counts.skipped_elements, 7U);
  EXPECT_EQ(counts.kept_elements, 24U);
}

}  // namespace
}  // namespace isthmus
