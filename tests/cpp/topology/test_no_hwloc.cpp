// A build without hwloc: it names the packages.
#include <gtest/gtest.h>

#include "topology/read.h"

namespace isthmus::topology {
namespace {

TEST(WithoutHwloc, ThePackagesAreNamed) {
  EXPECT_EQ(hwloc_version(), "");
  EXPECT_THROW(discover({}), TopologyError);
  try {
    read_machine("machine.xml");
    ADD_FAILURE();
  } catch (const TopologyError& error) {
    EXPECT_NE(std::string(error.what()).find("install libhwloc-dev and libexpat1-dev"), std::string::npos);
  }
}

}  // namespace
}  // namespace isthmus::topology
