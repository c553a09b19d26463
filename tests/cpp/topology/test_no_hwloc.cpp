// A build without hwloc: what it reads, and what it says of the rest.
#include <gtest/gtest.h>

#include "machines.h"
#include "topology/discover.h"

namespace isthmus::topology {
namespace {

TEST(WithoutHwloc, OtherFormatsAreReadAndThePackageIsNamed) {
  EXPECT_EQ(hwloc_version(), "");
  EXPECT_EQ(parse("GPU0\nGPU0 X\n").gpus.size(), 1);
  expect_refused(eight_devices(), "built without hwloc, which describes machines: install libhwloc-dev");
  EXPECT_THROW(discover({}), TopologyError);
}

}  // namespace
}  // namespace isthmus::topology
