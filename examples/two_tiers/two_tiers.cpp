// Gradients reduced in two tiers over MPI: plainly within a node, compressed by `tagc` between nodes. Without torch.
//
//   mpiexec -n 4 two_tiers [elements of a rank's shard] [nodes: 2x2]
//
// Verifies itself: what `tagc` holds back in one step arrives in later ones, until the whole sum is there.
#include <isthmus/error.h>
#include <isthmus/mpi.h>
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "near_nic.h"

namespace {

constexpr int kMaxSteps = 100;

isthmus::ConstBuffer view(const std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), isthmus::DataType::kFloat32};
}
isthmus::Buffer view(std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), isthmus::DataType::kFloat32};
}

// Small whole numbers: sums of them are exact.
std::vector<float> make_gradient(int rank, int64_t num_elements) {
  std::vector<float> gradient(static_cast<size_t>(num_elements));
  for (int64_t i = 0; i < num_elements; ++i) {
    gradient[i] = static_cast<float>((31 * rank + 7 * i + i / 64) % 13 - 6);
  }
  return gradient;
}

double sum_over_ranks(double value) {
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return value;
}

double distance(const std::vector<float>& one, const std::vector<float>& other) {
  double squares = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    squares += (one[i] - other[i]) * (one[i] - other[i]);
  }
  return std::sqrt(sum_over_ranks(squares));
}

// One line a rank, in order.
void print_in_order(int rank, int size, const std::string& text) {
  for (int turn = 0; turn < size; ++turn) {
    if (turn == rank) {
      std::cout << "rank " << rank << ": " << text << std::endl;
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

// Returns whether the result was right.
bool run(int rank, int size, int64_t shard_elements, const std::string& nodes) {
  const isthmus::NodeMap map =
      nodes.empty() ? isthmus::mpi_node_map(MPI_COMM_WORLD) : isthmus::NodeMap::parse(nodes, size);
  if (rank == 0) {
    std::cout << map.to_string() << std::endl;
  }
  const std::string place = bind_near_nic(map.local_index(rank));
  print_in_order(rank, size, "node " + std::to_string(map.node(rank)) + ", " + place);

  isthmus::Options options;
  options.codec = "tagc";
  options.ratio = 2;
  options.sparsity = .8;
  isthmus::Communicator communicator(map, rank, isthmus::mpi_tiers(MPI_COMM_WORLD, map), options);

  std::vector<float> gradient = make_gradient(rank, size * shard_elements);
  std::vector<float> exact(static_cast<size_t>(shard_elements));
  MPI_Reduce_scatter_block(gradient.data(), exact.data(), static_cast<int>(shard_elements), MPI_FLOAT, MPI_SUM,
                           MPI_COMM_WORLD);

  // The gradient once, then zeros: only what was held back still comes.
  const isthmus::UnitPtr unit = isthmus::make_unit({"example", size * shard_elements});
  std::vector<float> shard(exact.size());
  std::vector<float> arrived(exact.size(), 0);
  double missing = distance(exact, arrived);
  for (int step = 1; step <= kMaxSteps && missing > 0; ++step) {
    communicator.reduce_scatter(view(std::as_const(gradient)), view(shard), {unit});
    for (size_t i = 0; i < shard.size(); ++i) {
      arrived[i] += shard[i];
    }
    std::fill(gradient.begin(), gradient.end(), 0.F);
    missing = distance(exact, arrived);
    const auto left = static_cast<double>(communicator.stats().collectives[0].inter.inter_node_sent_bytes);
    const double node_bytes = sum_over_ranks(left) / map.num_nodes();
    if (rank == 0) {
      std::cout << "step " << step << ": " << node_bytes << " bytes left each node so far, L2 distance to the sum "
                << missing << std::endl;
    }
  }
  return missing == 0;
}

}  // namespace

int main(int argc, char** argv) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int64_t shard_elements = argc > 1 ? std::atoll(argv[1]) : 1 << 16;
  bool right = false;
  try {
    ISTHMUS_CHECK(isthmus::Error, shard_elements > 0 && shard_elements <= 1 << 28, "elements \"", argv[1],
                  "\": expected 1 to 2^28");
    right = run(rank, size, shard_elements, argc > 2 ? argv[2] : "");
  } catch (const isthmus::Error& error) {
    std::cerr << "rank " << rank << ": " << error.what() << std::endl;
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
  if (rank == 0) {
    std::cout << (right ? "right" : "WRONG") << std::endl;
  }
  MPI_Finalize();
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
