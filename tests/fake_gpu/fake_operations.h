// What NCCL's collectives do, each as the messages that it takes and the arithmetic after them.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fake_mesh.h"
#include "fake_runtime.h"

namespace isthmus::fake_gpu {

struct Communicator {
  Communicator(const std::string& communicator_name, int rank, int size)
      : name(communicator_name), mesh(communicator_name, rank, size) {
    cudaGetDevice(&device);
  }

  std::string name;
  Mesh mesh;
  int device = 0;
  int most_ctas = 0;  // of its configuration; 0: no bound
  uint64_t num_collectives = 0;
  int num_splits = 0;
  std::atomic<bool> in_use = false;
  std::atomic<ncclResult_t> error = ncclSuccess;
  std::atomic<std::chrono::steady_clock::time_point> told_from = {};  // when ncclCommGetAsyncError() says `error`
  ResidentPtr latest_kernel = {};                                     // by the thread that issues operations
  std::map<int, double> factors;  // of reductions made by ncclRedOpCreatePreMulSum()
};
using CommunicatorPtr = std::shared_ptr<Communicator>;
// Who sends what to whom: parts of `in` and `out` are numbered by rank.
struct Pattern {
  const char* name;
  bool only_from_root = false;
  bool only_to_root = false;
  bool in_has_parts = false;   // one for each receiver
  bool out_has_parts = false;  // one from each sender
  bool reduces = false;        // or else what comes is stored
};
inline constexpr Pattern kAllReduce = {.name = "AllReduce", .reduces = true};
inline constexpr Pattern kReduce = {.name = "Reduce", .only_to_root = true, .reduces = true};
inline constexpr Pattern kReduceScatter = {.name = "ReduceScatter", .in_has_parts = true, .reduces = true};
inline constexpr Pattern kAllGather = {.name = "AllGather", .out_has_parts = true};
inline constexpr Pattern kBroadcast = {.name = "Broadcast", .only_from_root = true};
inline constexpr Pattern kAllToAll = {.name = "AlltoAll", .in_has_parts = true, .out_has_parts = true};
inline constexpr Pattern kGather = {.name = "Gather", .only_to_root = true, .out_has_parts = true};
inline constexpr Pattern kScatter = {.name = "Scatter", .only_from_root = true, .in_has_parts = true};
inline constexpr Pattern kSend = {.name = "Send/Recv"};
inline constexpr Pattern kRecv = {.name = "Send/Recv"};
// A call, as one rank makes it.
struct Operation {
  const Pattern* pattern;
  const void* in;
  void* out;
  size_t count;  // of one part
  ncclDataType_t dtype;
  ncclRedOp_t reduction = ncclSum;
  int root = 0;  // or peer, of kSend and kRecv
  CommunicatorPtr communicator = {};
  double factor = 1;  // of this rank, for its summands
  cudaStream_t stream = nullptr;

  size_t bytes = 0;  // of one part
  MessageHeader header = {};
  std::vector<std::vector<std::byte>> arrived = {};  // summands, by rank
  std::vector<size_t> incoming = {};                 // their places among the transfers, by rank

  int rank() const { return communicator->mesh.rank(); }
  int size() const { return communicator->mesh.size(); }
  bool is_collective() const { return pattern != &kSend && pattern != &kRecv; }
  bool sends(int from, int to) const {
    return (!pattern->only_from_root || from == root) && (!pattern->only_to_root || to == root);
  }
  std::byte* in_part(int to) const {
    return static_cast<std::byte*>(const_cast<void*>(in)) + (pattern->in_has_parts ? to * bytes : 0);
  }
  std::byte* out_part(int from) const {
    return static_cast<std::byte*>(out) + (pattern->out_has_parts ? from * bytes : 0);
  }
};
// Runs operations side by side, as NCCL does those of one group; on return they are done. Throws NcclError, which the
// communicators remember.
void run(std::vector<Operation> operations);
// As run(); where NCCL spins, what is not done soon goes on after the return, and never fails.
void launch(std::vector<Operation> operations);

// --- fake_reductions.cpp: arithmetic

// Gives up on a type that NCCL does not have.
size_t bytes_of(ncclDataType_t dtype);

// *scalar, of a floating type.
double read_scalar(const void* scalar, ncclDataType_t dtype);

// A rank's part of a reduction. Its values are multiplied by `factor` first (floating types).
struct Summand {
  const void* values;
  double factor = 1;
};

// out[i] = the reduction of element i of all summands, in their order: of 16-bit types in float, rounded once.
// `out` may be one of the summands. ncclAvg: the sum divided by the number of summands.
void reduce(const std::vector<Summand>& summands, ncclRedOp_t op, ncclDataType_t dtype, int64_t count, void* out);

}  // namespace isthmus::fake_gpu
