// Sums of squares on emulated groups have the same bits however they are cut, and steps are counted. All other
// arithmetic of a device is the subject of tests/gpu/checks/arithmetic.cpp.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "codec/gpu_device.h"
#include "isthmus/device.h"
#include "kernels/elementwise/sequence.h"
#include "tests/cpp/emulated/emulated_device.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus {
namespace {

using test::Array;
using test::EmulatedDevice;

// What a device adds to totals that are not zero, and what the CPU does.
struct SquaredErrors {
  SquaredError host;
  SquaredError device;

  SquaredErrors(int64_t num_elements, EmulatedDevice emulated) {
    const Array given(test::random_values(num_elements, 1), DataType::kFloat32);
    const Array decoded(test::random_values(num_elements, 2), DataType::kFloat32);
    host.given = host.dropped = device.given = device.dropped = 1000;
    const auto error = std::shared_ptr<SquaredError>(std::shared_ptr<void>(), &host);
    make_host_device()->add_squared_error(given.view(), decoded.view(), error, {});
    std::vector<double> scratch(kSquaredErrorScratchBytes / sizeof(double), std::numeric_limits<double>::quiet_NaN());
    kernels::emulated::add_squared_error(
        emulated, make_squared_error_job(given.view(), decoded.view(), &device,
                                         {scratch.data(), kSquaredErrorScratchBytes, DataType::kByte}));
  }
};

TEST(ValuesDevice, SquaredErrorsDoNotDependOnTheDevice) {
  std::set<std::pair<double, double>> results;
  for (const int64_t max_groups : {1, 2, 5, 64}) {
    const SquaredErrors errors(50000, EmulatedDevice(32, max_groups, static_cast<uint32_t>(max_groups)));
    results.emplace(errors.device.given, errors.device.dropped);
    EXPECT_NEAR(errors.device.dropped, errors.host.dropped, 1e-10 * errors.host.dropped);
  }
  EXPECT_EQ(results.size(), 1U);
}

// For ThreadSanitizer.
TEST(ValuesDevice, SquaredErrorsOfThreadsAtOnce) {
  const SquaredErrors errors(3000, EmulatedDevice(5, 2, 1, EmulatedDevice::Threads::kAtOnce));
  EXPECT_NEAR(errors.device.dropped, errors.host.dropped, 1e-10 * errors.host.dropped);
}

}  // namespace
}  // namespace isthmus
