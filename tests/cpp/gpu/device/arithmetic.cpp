// Conversions and products on a device against the CPU's, bit for bit but for which NaN a result is.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "tests/cpp/gpu/device/coding.h"
#include "tests/cpp/gpu/device/tests.h"

namespace isthmus::gpu {
namespace {

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16, DataType::kFloat64};

// Numbers where rounding, overflow and underflow of any two types are at stake, and any bits.
HostArray numbers(int64_t num_elements, DataType dtype, uint32_t seed) {
  constexpr double kSpecial[] = {0.0,     -0.0,    1.0,       -1.0,     1.00390625,  1.01171875,
                                 65504.0, 65519.,  65520.0,   -65536.0, 3.3895e38,   3.4028e38,
                                 3.41e38, 1e39,    5e-8,      2.9e-8,   1.17549e-38, 1.4013e-45,
                                 7.1e-46, 9.2e-41, 6.1035e-5, 1e308,    5e-324,      1.0 / 3.0};
  const double others[] = {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()};
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  HostArray doubles(num_elements, DataType::kFloat64);
  auto* values = doubles.buffer().as<double>();
  for (int64_t i = 0; i < num_elements; ++i) {
    switch (random() % 4) {
      case 0:
        values[i] = kSpecial[random() % std::size(kSpecial)];
        break;
      case 1:
        values[i] = static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(random())));
        break;
      case 2:
        values[i] = random() % 16 == 0 ? others[random() % std::size(others)] : normal(random) * 1e-3;
        break;
      default:
        values[i] = normal(random);
    }
  }
  return doubles.as(dtype);
}

std::string pair_name(DataType in, DataType out) { return std::string(to_string(in)) + " to " + to_string(out); }

void compare_conversion(Device& device, DataType in, DataType out, int64_t num_elements, int64_t offset,
                        std::optional<double> scale = {}) {
  const HostArray source = numbers(num_elements, in, 1);
  const DeviceArray from(device, source.view(), offset);
  const DeviceArray to(device, num_elements, out, offset);
  HostArray expected(num_elements, out);
  if (scale) {
    device.convert_scaled(from.buffer(), *scale, to.buffer(), device.lane(Lane::kDecode));
    convert_scaled(source.view(), *scale, expected.buffer());
  } else {
    device.convert(from.buffer(), to.buffer(), device.lane(Lane::kIntra));
    convert(source.view(), expected.buffer());
  }
  require_equal(to, expected, "values");
}

void compare_product(Device& device, int64_t num_elements, double factor) {
  HostArray expected = numbers(num_elements, DataType::kFloat32, 3);
  const DeviceArray values(device, expected.view());
  device.multiply(values.buffer(), factor, device.lane(Lane::kEncode));
  make_host_device()->multiply(expected.buffer(), factor, {});
  require_equal(values, expected, "products");
}

void compare_sum(Device& device, int64_t num_elements, int64_t offset) {
  const HostArray added = numbers(num_elements, DataType::kFloat32, 4);
  HostArray expected = numbers(num_elements, DataType::kFloat32, 5);
  const DeviceArray values(device, added.view(), offset);
  const DeviceArray sum(device, expected.view(), offset);
  device.add(values.buffer(), sum.buffer(), device.lane(Lane::kEncode));
  accumulate(added.view(), expected.buffer());
  require_equal(sum, expected, "sums");
}

bool is_near(double value, double expected) { return std::fabs(value - expected) <= 1e-10 * std::fabs(expected); }

// The host adds in another order.
void compare_squared_errors(Gpu& gpu, int64_t num_elements, int64_t offset) {
  Device& device = gpu.device();
  const std::shared_ptr<Device> host = make_host_device();
  const DeviceArray scratch(device, device.squared_error_scratch_bytes(), DataType::kByte);
  const Workspace workspace = {device.lane(Lane::kEncode), scratch.buffer()};
  const HostArray given = numbers(num_elements, DataType::kFloat32, 6);
  const HostArray decoded = numbers(num_elements, DataType::kFloat32, 7);
  const DeviceArray given_there(device, given.view(), offset);
  const DeviceArray decoded_there(device, decoded.view(), offset);
  const std::shared_ptr<SquaredError> found = device.make_squared_error();
  const std::shared_ptr<SquaredError> expected = host->make_squared_error();
  for (int i = 0; i < 2; ++i) {
    device.add_squared_error(given_there.buffer(), decoded_there.buffer(), found, workspace);
    host->add_squared_error(given.view(), decoded.view(), expected, {});
  }
  gpu.synchronize();
  require(is_near(found->given, expected->given), "given: " + std::to_string(found->given));
  require(is_near(found->dropped, expected->dropped), "dropped: " + std::to_string(found->dropped));
}

void check_clear(Device& device) {
  DeviceArray bytes(device, 1003, DataType::kByte);
  bytes.set(HostArray(1003, DataType::kByte).view());
  HostArray ones(1003, DataType::kByte);
  std::memset(ones.buffer().data, 1, 1003);
  bytes.set(ones.view());
  device.clear(bytes.buffer().slice(3, 901), device.lane(Lane::kIntra));
  std::memset(ones.buffer().slice(3, 901).data, 0, 901);
  require(same_bytes(bytes.get().view(), ones.view()), "other bytes were cleared");
}

}  // namespace

void add_arithmetic(bool is_short) {
  const int64_t many = is_short ? 5003 : 1000003;
  for (const DataType in : kTypes) {
    for (const DataType out : kTypes) {
      add_test("Device", "convert, " + pair_name(in, out), [=] {
        const std::unique_ptr<Gpu> gpu = make_gpu();
        for (const int64_t num_elements : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{7}, int64_t{1025}, many}) {
          compare_conversion(gpu->device(), in, out, num_elements, 0);
        }
        compare_conversion(gpu->device(), in, out, 1025, 1);
        compare_conversion(gpu->device(), in, out, 1025, 3);
      });
      add_test("Device", "convert_scaled, " + pair_name(in, out), [=] {
        const std::unique_ptr<Gpu> gpu = make_gpu();
        for (const double scale : {.25, 1.0 / 3.0, 1e-30, 1e30}) {
          compare_conversion(gpu->device(), in, out, 1025, 0, scale);
        }
        compare_conversion(gpu->device(), in, out, many, 0, 1.0 / 6.0);
      });
    }
  }
  add_test("Device", "multiply", [=] {
    const std::unique_ptr<Gpu> gpu = make_gpu();
    for (const double factor : {2.0, 1.0 / 3.0, 1e30, 1e-30}) {
      compare_product(gpu->device(), 1, factor);
      compare_product(gpu->device(), many, factor);
    }
  });
  add_test("Device", "add", [=] {
    const std::unique_ptr<Gpu> gpu = make_gpu();
    for (const int64_t num_elements : {int64_t{0}, int64_t{1}, int64_t{5}, many}) {
      compare_sum(gpu->device(), num_elements, 0);
      compare_sum(gpu->device(), num_elements, 1);
    }
  });
  add_test("Device", "squared errors", [=] {
    const std::unique_ptr<Gpu> gpu = make_gpu();
    for (const int64_t num_elements : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{1025}, many}) {
      compare_squared_errors(*gpu, num_elements, 0);
      compare_squared_errors(*gpu, num_elements, 1);
    }
  });
  add_test("Device", "clear", [] { check_clear(make_gpu()->device()); });
}

}  // namespace isthmus::gpu
