// What the tests that every transport has to pass (transport_suite.cpp) need to know of one. The executable of each
// transport defines it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "isthmus/transport.h"

namespace isthmus::test {

class TierUnderTest {
 public:
  virtual ~TierUnderTest() = default;
  // Runs body(rank, transport) for every rank of the tier that lives in this process, and waits for these. No rank may
  // throw.
  virtual void run_well(const std::function<void(int rank, Transport& transport)>& body) = 0;
};

// All ranks in one tier; node_of_rank[r] is rank r's node. At most max_ranks().
std::unique_ptr<TierUnderTest> make_tier(const std::vector<int>& node_of_rank);
int max_ranks();

}  // namespace isthmus::test
