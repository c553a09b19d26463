// The ranks that are measured, whatever they are: threads of this process, processes that mpiexec started, or processes
// with a GPU each.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/device.h"
#include "isthmus/node_map.h"

namespace isthmus::perf {

// One rank, for the thread that is it. All ranks call the same methods in the same order.
class Rank {
 public:
  Rank(int rank, int size, std::shared_ptr<Device> device = make_host_device())
      : rank_(rank), size_(size), device_(std::move(device)) {}
  virtual ~Rank() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::shared_ptr<Device>& device() const { return device_; }  // where its tiers expect buffers
  virtual std::string device_model();
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
  const std::shared_ptr<Device> device_;
  std::shared_ptr<Transport> everyone_;  // made when it is first needed
};

using RankBody = std::function<void(Rank&)>;

// Half the ranks on each of two nodes, if they are even; else all on one.
NodeMap two_nodes(int num_ranks);

// Each runs body for every rank that lives in this process. Throws what the first rank that failed threw.
void run_in_process(int num_ranks, std::chrono::milliseconds timeout, const RankBody& body);
void run_over_mpi(std::chrono::milliseconds timeout, const RankBody& body);
bool started_by_mpiexec();
std::string mpi_version();  // empty: built without MPI

// A process that is a rank with a GPU, whoever started it.
struct NcclProcess {
  int rank = -1;
  int num_ranks = 0;
  int gpu = -1;         // -1: by torchrun's LOCAL_RANK, or else by rank
  std::string id_file;  // the ranks meet at this path, which all of them see and nothing is at
};
void run_over_nccl(const NcclProcess& process, std::chrono::milliseconds timeout, const RankBody& body);
std::string nccl_version_text();  // empty: built without NCCL

}  // namespace isthmus::perf
