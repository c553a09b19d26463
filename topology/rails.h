// Rails: which NIC each local index should use, and its speed out of the node, by the rules of docs/topology.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "topology/machine.h"

namespace isthmus::topology {

// The ranks with this local index, and the NIC that they should use. gpu, nic: places in the machine's lists; gpu -1:
// none. distance: from the GPU to the NIC. num_sharing: ranks of the node that use this NIC, this one included.
// speed_gbit_s: at most, while all ranks send and receive.
struct Rail {
  int local_index = 0;
  int gpu = -1;
  int nic = 0;
  std::string distance;
  int num_sharing = 1;
  std::optional<double> speed_gbit_s;
};

// One a rank; none where the machine has no NIC.
struct Rails {
  std::vector<Rail> rails;
  std::vector<std::string> notes;
};

// Pairs ranks with NICs. ranks_per_node: by default one a GPU, or one where there is no GPU. Throws TopologyError where
// there are more ranks than GPUs, or none.
Rails find_rails(const Machine& machine, std::optional<int> ranks_per_node = {});

// The places of the NICs that rails run over: those with RDMA, if any, and among these none that is far slower than the
// best.
std::vector<int> rail_nics(const Machine& machine);

}  // namespace isthmus::topology
