// NCCL's functions over a wire that is not there: one process is rank 0 of as many as it likes. To be preloaded, so
// that torch's NCCL backend, and whoever else calls NCCL, call these.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/gpu/wire/model.h"
#include "tests/gpu/wire/wire.h"

#define WIRE_API extern "C" __attribute__((visibility("default")))

// What NCCL's handle is here.
struct ncclComm {
  int rank = 0;
  int size = 1;
  int device = 0;
  int most_blocks = 0;  // 0: no bound
};

namespace isthmus::wire {
namespace {

constexpr WireModel kNoModel = {1, 1, 1e12, 1e12, 0, 1, 0};

// Never destroyed: communicators are aborted while the program ends, too.
struct State {
  std::mutex mutex;
  WireModel model = kNoModel;
  WireTotals totals = {};
  std::vector<WireCommunicator> communicators;
  std::atomic<int> lane_priority{1};
};

State& state() {
  static auto* const instance = new State;
  return *instance;
}

int64_t bytes_of(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

// A call, until its group ends. sent_bytes: by this rank, to others.
struct Operation {
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Part> parts;
  int64_t sent_bytes = 0;
  // Of a point-to-point operation: the half of a part that its partner has the other half of.
  int peer = -1;
  bool sends = false;
};

thread_local int group_depth = 0;
thread_local std::vector<Operation> group;

const char* at(const void* base, int64_t offset) { return static_cast<const char*>(base) + offset; }
char* at(void* base, int64_t offset) { return static_cast<char*>(base) + offset; }

struct Speed {
  Link link;
  double bytes_per_s;
};

Speed speed_of(const WireModel& model, int size) {
  if (size == model.ranks_of_node * model.num_nodes) {
    return {Link::kInter, std::min(model.intra_bytes_per_s, model.node_bytes_per_s)};
  }
  if (size == model.num_nodes) {
    return {Link::kInter, model.node_bytes_per_s / model.ranks_of_node};
  }
  return {Link::kIntra, model.intra_bytes_per_s};
}

// What this rank sends to a peer comes back as what the peer sends: the first message as the first.
void meet(std::vector<Operation>& operations) {
  for (Operation& receive : operations) {
    if (receive.peer < 0 || receive.sends) {
      continue;
    }
    const auto send = std::find_if(operations.begin(), operations.end(), [&](const Operation& other) {
      return other.sends && other.peer == receive.peer && !other.parts.empty();
    });
    if (send != operations.end()) {
      Part& part = receive.parts.front();
      part.from = send->parts.front().from;
      part.bytes = std::min(part.bytes, send->parts.front().bytes);
      part.sender = receive.peer;
      send->parts.clear();
    } else {
      receive.parts.clear();
    }
  }
  for (Operation& operation : operations) {
    if (operation.sends) {
      operation.parts.clear();
    }
  }
}

// All operations have one communicator and one stream: one transfer.
cudaError_t run_together(std::vector<Operation> operations) {
  const std::lock_guard lock(state().mutex);
  const WireModel& model = state().model;
  const ncclComm& communicator = *operations.front().communicator;
  const Speed speed = speed_of(model, communicator.size);
  const bool is_rail = communicator.size == model.num_nodes;  // where packets cross
  meet(operations);
  Transfer transfer;
  int64_t sent_bytes = 0;
  for (const Operation& operation : operations) {
    sent_bytes += operation.sent_bytes;
    for (Part part : operation.parts) {
      part.sender = is_rail ? part.sender : -1;
      if (part.from != part.to && part.bytes > 0) {
        transfer.parts.push_back(part);
      }
    }
  }
  transfer.link = speed.link;
  transfer.hold_s = static_cast<double>(sent_bytes) / speed.bytes_per_s;
  transfer.latency_s = model.latency_s;
  transfer.num_blocks = communicator.most_blocks > 0 ? std::min(communicator.most_blocks, model.num_blocks)  //
                                                     : model.num_blocks;
  const auto link = static_cast<size_t>(speed.link);
  state().totals.operations[link] += static_cast<int64_t>(operations.size());
  state().totals.bytes[link] += sent_bytes;
  state().totals.hold_s[link] += transfer.hold_s;
  state().totals.kernels[link] += 1;
  return model.is_on != 0 ? transmit(transfer, operations.front().stream) : cudaSuccess;
}

ncclResult_t run(std::vector<Operation> operations) {
  while (!operations.empty()) {
    const Operation& first = operations.front();
    const auto others =
        std::stable_partition(operations.begin(), operations.end(),
                              [communicator = first.communicator, stream = first.stream](const Operation& other) {
                                return other.communicator == communicator && other.stream == stream;
                              });
    std::vector<Operation> together(std::make_move_iterator(operations.begin()), std::make_move_iterator(others));
    operations.erase(operations.begin(), others);
    if (run_together(std::move(together)) != cudaSuccess) {
      return ncclUnhandledCudaError;
    }
  }
  return ncclSuccess;
}

ncclResult_t call(Operation operation) {
  group.push_back(std::move(operation));
  return group_depth > 0 ? ncclSuccess : run(std::exchange(group, {}));
}

ncclResult_t make_communicator(ncclComm_t* result, int rank, int size, const ncclConfig_t* config) {
  auto* const made = new ncclComm{.rank = rank, .size = size};
  if (cudaGetDevice(&made->device) != cudaSuccess) {
    delete made;
    return ncclUnhandledCudaError;
  }
  if (config != nullptr && config->maxCTAs != NCCL_CONFIG_UNDEF_INT) {
    made->most_blocks = config->maxCTAs;
  }
  const std::lock_guard lock(state().mutex);
  state().communicators.push_back({size, made->most_blocks});
  *result = made;
  return ncclSuccess;
}

}  // namespace
}  // namespace isthmus::wire

using namespace isthmus::wire;

// --- the model

WIRE_API void wire_set_model(const WireModel* model) {
  const std::lock_guard lock(state().mutex);
  state().model = *model;
}
WIRE_API void wire_take_totals(WireTotals* totals) {
  const std::lock_guard lock(state().mutex);
  *totals = std::exchange(state().totals, {});
}
WIRE_API int32_t wire_communicators(WireCommunicator* communicators, int32_t most) {
  const std::lock_guard lock(state().mutex);
  const auto& made = state().communicators;
  std::copy_n(made.begin(), std::min<size_t>(made.size(), static_cast<size_t>(most)), communicators);
  return static_cast<int32_t>(made.size());
}
WIRE_API void wire_set_lane_priority(int priority) { state().lane_priority = priority; }

// Lanes are made by libisthmus_cuda; all other streams are left alone.
WIRE_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  static const auto real =
      reinterpret_cast<decltype(&cudaStreamCreateWithPriority)>(dlsym(RTLD_NEXT, "cudaStreamCreateWithPriority"));
  const int chosen = state().lane_priority;
  Dl_info caller = {};
  const bool is_lane = chosen <= 0 && dladdr(__builtin_return_address(0), &caller) != 0 &&
                       caller.dli_fname != nullptr && std::strstr(caller.dli_fname, "isthmus_cuda") != nullptr;
  return real(stream, flags, is_lane ? chosen : priority);
}

// --- communicators

WIRE_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}
WIRE_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId, int rank,
                                             ncclConfig_t* config) {
  return make_communicator(communicator, rank, size, config);
}
WIRE_API ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int size, ncclUniqueId, int rank) {
  return make_communicator(communicator, rank, size, nullptr);
}
WIRE_API ncclResult_t ncclCommInitRankScalable(ncclComm_t* communicator, int size, int rank, int, ncclUniqueId*,
                                               ncclConfig_t* config) {
  return make_communicator(communicator, rank, size, config);
}
WIRE_API ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*) { return ncclInvalidUsage; }
WIRE_API ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
// Never freed: the watchdog of torch may still ask for errors.
WIRE_API ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
WIRE_API ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
WIRE_API ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
WIRE_API ncclResult_t ncclCommCount(const ncclComm_t communicator, int* size) {
  *size = communicator->size;
  return ncclSuccess;
}
WIRE_API ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
  *rank = communicator->rank;
  return ncclSuccess;
}
WIRE_API ncclResult_t ncclCommCuDevice(const ncclComm_t communicator, int* device) {
  *device = communicator->device;
  return ncclSuccess;
}
WIRE_API ncclResult_t ncclCommRegister(const ncclComm_t, void* address, size_t, void** handle) {
  *handle = address;
  return ncclSuccess;
}
WIRE_API ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
WIRE_API const char* ncclGetLastError(ncclComm_t) { return "of the wire"; }
WIRE_API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* reduction, void*, ncclDataType_t, ncclScalarResidence_t,
                                               ncclComm_t) {
  *reduction = ncclSum;
  return ncclSuccess;
}
WIRE_API ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

// --- operations: what other ranks would send is what this one sends

WIRE_API ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
WIRE_API ncclResult_t ncclGroupEnd() { return --group_depth > 0 ? ncclSuccess : run(std::exchange(group, {})); }

WIRE_API ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t,
                                    ncclComm_t communicator, cudaStream_t stream) {
  const int64_t bytes = static_cast<int64_t>(count) * bytes_of(dtype);
  return call({communicator, stream, {{in, out, bytes}}, 2 * bytes * (communicator->size - 1) / communicator->size});
}
WIRE_API ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t, int root,
                                 ncclComm_t communicator, cudaStream_t stream) {
  const int64_t bytes = static_cast<int64_t>(count) * bytes_of(dtype);
  return call({communicator, stream, {{in, root == communicator->rank ? out : const_cast<void*>(in), bytes}}, bytes});
}
WIRE_API ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t,
                                        ncclComm_t communicator, cudaStream_t stream) {
  const int64_t bytes = static_cast<int64_t>(count) * bytes_of(dtype);
  return call(
      {communicator, stream, {{at(in, communicator->rank * bytes), out, bytes}}, bytes * (communicator->size - 1)});
}
WIRE_API ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t dtype,
                                    ncclComm_t communicator, cudaStream_t stream) {
  const int64_t bytes = static_cast<int64_t>(count) * bytes_of(dtype);
  Operation operation{communicator, stream, {}, bytes * (communicator->size - 1)};
  for (int rank = 0; rank < communicator->size; ++rank) {
    operation.parts.push_back({in, at(out, rank * bytes), bytes});
  }
  return call(std::move(operation));
}
WIRE_API ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t dtype, int,
                                    ncclComm_t communicator, cudaStream_t stream) {
  const int64_t bytes = static_cast<int64_t>(count) * bytes_of(dtype);
  return call({communicator, stream, {{in, out, bytes}}, bytes});
}
WIRE_API ncclResult_t ncclBcast(void* values, size_t count, ncclDataType_t dtype, int root, ncclComm_t communicator,
                                cudaStream_t stream) {
  return ncclBroadcast(values, values, count, dtype, root, communicator, stream);
}
WIRE_API ncclResult_t ncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t dtype,
                                   ncclComm_t communicator, cudaStream_t stream) {
  const int64_t bytes = static_cast<int64_t>(count) * bytes_of(dtype);
  Operation operation{communicator, stream, {}, bytes * (communicator->size - 1)};
  for (int peer = 0; peer < communicator->size; ++peer) {
    const bool is_own = peer == communicator->rank;
    operation.parts.push_back({at(in, peer * bytes), at(out, peer * bytes), bytes, is_own ? -1 : peer});
  }
  return call(std::move(operation));
}
WIRE_API ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t dtype, int peer, ncclComm_t communicator,
                               cudaStream_t stream) {
  const int64_t bytes = static_cast<int64_t>(count) * bytes_of(dtype);
  return call({communicator, stream, {{in, nullptr, bytes}}, peer == communicator->rank ? 0 : bytes, peer, true});
}
WIRE_API ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t dtype, int peer, ncclComm_t communicator,
                               cudaStream_t stream) {
  const int64_t bytes = static_cast<int64_t>(count) * bytes_of(dtype);
  return call({communicator, stream, {{nullptr, out, bytes}}, 0, peer, false});
}
