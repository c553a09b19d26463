// The ranks that are measured, whatever they are: threads of this process, or processes that mpiexec started.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/node_map.h"

namespace isthmus::perf {

// One rank, for the thread that is it. All ranks call the same methods in the same order.
class Rank {
 public:
  Rank(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Rank() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual NodeMap default_nodes() = 0;
  virtual Tiers tiers(const NodeMap& map) = 0;

  // What each rank has. Returns when all have come.
  std::vector<double> gather(double value);
  std::vector<std::string> gather(const std::string& text);  // cut to 255 bytes
  void barrier() { gather(0); }

 private:
  void gather_bytes(const void* own, int64_t bytes, void* all);

  const int rank_;
  const int size_;
  std::shared_ptr<Transport> everyone_;  // made when it is first needed
};

using RankBody = std::function<void(Rank&)>;

// Each runs body for every rank that lives in this process. Throws what the first rank that failed threw.
void run_in_process(int num_ranks, std::chrono::milliseconds timeout, const RankBody& body);
void run_over_mpi(std::chrono::milliseconds timeout, const RankBody& body);
bool started_by_mpiexec();
std::string mpi_version();  // empty: built without MPI

}  // namespace isthmus::perf
