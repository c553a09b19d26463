// What a process knows of its MPI, and how it makes tiers of a communicator.
#include <algorithm>
#include <memory>
#include <vector>

#include "isthmus/error.h"
#include "transport/mpi.h"

namespace isthmus {

namespace {

const char* name_of_lower_level(int level) {
  return level == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
         : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
         : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                          : "an unknown level";
}

}  // namespace

bool mpi_is_running() {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised != 0 && finalised == 0;
}

void require_mpi() {
  ISTHMUS_CHECK(Error, mpi_is_running(),
                "MPI is not running: call MPI_Init_thread first, and let go of all tiers before "
                "MPI_Finalize");
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  ISTHMUS_CHECK(Error, level >= MPI_THREAD_MULTIPLE, "MPI runs at level ", name_of_lower_level(level),
                ", but Isthmus needs MPI_THREAD_MULTIPLE: ask for it in MPI_Init_thread");
}

NodeMap mpi_node_map(MPI_Comm comm) {
  require_mpi();
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
  int label = rank_in(comm);  // the lowest rank of a host is its label
  const int code = MPI_Allreduce(MPI_IN_PLACE, &label, 1, MPI_INT, MPI_MIN, host);
  MPI_Comm_free(&host);
  check_mpi(code, "MPI_Allreduce");
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  std::vector<int> label_of_rank(static_cast<size_t>(size));
  check_mpi(MPI_Allgather(&label, 1, MPI_INT, label_of_rank.data(), 1, MPI_INT, comm), "MPI_Allgather");
  return NodeMap(label_of_rank);
}

Tiers mpi_tiers(MPI_Comm comm, const NodeMap& map, const MpiLimits& limits) {
  require_mpi();
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  ISTHMUS_CHECK(Error, size == map.world_size(), "a node map of ", map.world_size(), " ranks for a communicator of ",
                size);
  map.require_even();
  const int rank = rank_in(comm);
  const auto tier = [&](const char* name, const std::vector<int>& ranks) {
    std::shared_ptr<Transport> transport;
    if (ranks.size() > 1) {
      std::vector<int> nodes(ranks.size());
      std::transform(ranks.begin(), ranks.end(), nodes.begin(), [&](int member) { return map.node(member); });
      transport = MpiTransport::create(name, comm, ranks, nodes, limits);
    }
    return transport;
  };
  Tiers tiers;
  tiers.intra = tier("intra", map.node_ranks(map.node(rank)));
  tiers.inter = tier("inter", map.rail_ranks(map.local_index(rank)));
  tiers.flat = tier("flat", map.all_ranks());
  return tiers;
}

}  // namespace isthmus
