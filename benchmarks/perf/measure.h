// Times one collective at one size, and verifies it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "isthmus/communicator.h"
#include "perf/arguments.h"
#include "perf/memory.h"
#include "perf/ranks.h"

namespace isthmus::perf {

// One line of the table. The same on all ranks.
struct Result {
  Operation operation = Operation::kReduceScatter;
  DataType dtype = DataType::kFloat32;
  std::string codec;
  std::string tiers;
  int64_t num_elements = 0;  // of the whole tensor
  double seconds = 0;        // a call, on the slowest rank
  double node_bytes = 0;     // payload that leaves a node in a call, on average over nodes
  // Elements that are not what they should be, over all ranks; nothing where results are not defined by element (flat
  // TAGC estimates what does not peel), or verification was off.
  std::optional<int64_t> num_wrong;

  int64_t bytes() const { return num_elements * element_bytes(dtype); }
  double algorithm_bandwidth() const { return seconds > 0 ? static_cast<double>(bytes()) / seconds / 1e9 : 0; }
  // What an exact collective must move at least over each rank's link, as in nccl-tests.
  double bus_bandwidth(int num_ranks) const;
};

// A communicator with these options, and what measuring with it takes.
class Bench {
 public:
  Bench(Rank& rank, const NodeMap& map, const Options& options, const Arguments& arguments);

  // num_elements is a multiple of the ranks.
  Result run(Operation operation, DataType dtype, int64_t num_elements);

 private:
  // Elements that are wrong, over all ranks.
  std::optional<int64_t> verify(Operation operation, DataType dtype, int64_t num_elements);
  // The same, of this rank's.
  int64_t count_wrong_in_gather(Buffer whole, Memory& part);
  int64_t count_wrong_in_sum(Operation operation, Memory& whole, Buffer part);
  bool loses(DataType dtype);
  EventPtr call(Operation operation, Buffer whole, Buffer part, const char* unit, double scale);
  EventPtr start(Operation operation, Buffer whole, Buffer part, const char* unit, double scale);
  // Until it has passed. Throws TransportError, after an abort, where that takes too long.
  void wait(const EventPtr& event);
  Device& device() { return communicator_.device(); }

  Rank& rank_;
  const NodeMap map_;
  const Tiers tiers_;
  const Arguments& arguments_;
  Communicator communicator_;
};

}  // namespace isthmus::perf
