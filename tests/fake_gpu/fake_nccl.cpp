// NCCL between processes of one machine that have no GPU. An operation, or the outermost ncclGroupEnd(), returns when
// it is done: streams order nothing here (fake_device.cpp).
#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_operations.h"
#include "fake_runtime.h"

namespace isthmus::fake_gpu {
namespace {

// Never destroyed: communicators are destroyed while the program ends, too.
struct Registry {
  std::mutex mutex;
  std::map<ncclComm_t, CommunicatorPtr> communicators;
  std::string last_error;
};

Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

CommunicatorPtr find(ncclComm_t handle, const char* caller) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().communicators.find(handle);
  if (found == registry().communicators.end()) {
    give_up("%s: no such communicator, or destroyed", caller);
  }
  return found->second;
}

ncclComm_t publish(CommunicatorPtr communicator) {
  const std::lock_guard lock(registry().mutex);
  const auto handle = reinterpret_cast<ncclComm_t>(communicator.get());
  registry().communicators[handle] = std::move(communicator);
  return handle;
}

CommunicatorPtr withdraw(ncclComm_t handle, const char* caller) {
  CommunicatorPtr communicator = find(handle, caller);
  const std::lock_guard lock(registry().mutex);
  registry().communicators.erase(handle);
  return communicator;
}

// Runs body() and makes a result of what it throws.
template <typename Body>
ncclResult_t guarded(Body body) {
  try {
    body();
    return ncclSuccess;
  } catch (const NcclError& error) {
    const std::lock_guard lock(registry().mutex);
    registry().last_error = error.what();
    return error.result();
  }
}

thread_local int group_depth = 0;
thread_local std::vector<Operation> group;

// Asked for at the call: the reduction may be destroyed before its group ends.
double factor_of(const Communicator& communicator, ncclRedOp_t reduction) {
  const auto found = communicator.factors.find(reduction);
  if (found == communicator.factors.end()) {
    give_up("NCCL: a reduction that this communicator does not have");
  }
  return found->second;
}

ncclResult_t call(Operation operation, ncclComm_t communicator, cudaStream_t stream) {
  check_stream(stream, operation.pattern->name);
  operation.communicator = find(communicator, operation.pattern->name);
  operation.stream = stream;
  if (operation.reduction >= ncclNumOps) {
    operation.factor = factor_of(*operation.communicator, operation.reduction);
  }
  if (group_depth > 0) {
    group.push_back(std::move(operation));
    return ncclSuccess;
  }
  return guarded([&] { launch({std::move(operation)}); });
}

ncclResult_t make_communicator(ncclComm_t* handle, const std::string& name, int rank, int size,
                               const ncclConfig_t* config = nullptr) {
  const bool is_bounded = config != nullptr && config->maxCTAs != NCCL_CONFIG_UNDEF_INT;
  const int most_ctas = is_bounded ? config->maxCTAs : 0;
  count_communicator(size, most_ctas);
  *handle = nullptr;
  return guarded([&] {
    auto made = std::make_shared<Communicator>(name, rank, size);
    made->most_ctas = most_ctas;
    *handle = publish(std::move(made));
  });
}

struct SplitRequest {
  int64_t color, key;
};

ncclResult_t split(Communicator& parent, ncclComm_t handle, SplitRequest own, ncclComm_t* result) {
  std::vector<SplitRequest> requests(parent.mesh.size());
  const ncclResult_t gathered = ncclAllGather(&own, requests.data(), sizeof(own), ncclUint8, handle, nullptr);
  if (gathered != ncclSuccess) {
    return gathered;
  }
  const std::string name = parent.name + "/" + std::to_string(++parent.num_splits) + "." + std::to_string(own.color);
  *result = nullptr;
  if (own.color == NCCL_SPLIT_NOCOLOR) {
    return ncclSuccess;
  }
  int rank = 0;
  int size = 0;
  for (int peer = 0; peer < parent.mesh.size(); ++peer) {
    const bool is_member = requests[peer].color == own.color;
    const bool is_before = requests[peer].key < own.key || (requests[peer].key == own.key && peer < parent.mesh.rank());
    size += is_member ? 1 : 0;
    rank += is_member && is_before ? 1 : 0;
  }
  return make_communicator(result, name, rank, size);
}

// NCCL waits for the end of CUDA graphs that refer to a communicator: for ever, if the caller keeps them.
void wait_for_graphs() {
  while (std::getenv("FAKE_NCCL_IN_GRAPHS") != nullptr) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::string name_of(const ncclUniqueId& id) { return id.internal; }

}  // namespace
}  // namespace isthmus::fake_gpu

using namespace isthmus::fake_gpu;

// --- what there is

FAKE_API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
FAKE_API const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclSystemError:
      return "system error of the fake NCCL";
    case ncclRemoteError:
      return "remote error of the fake NCCL";
    default:
      return "error of the fake NCCL";
  }
}
FAKE_API const char* ncclGetLastError(ncclComm_t) {
  const std::lock_guard lock(registry().mutex);
  return registry().last_error.c_str();
}
FAKE_API ncclResult_t ncclMemAlloc(void** address, size_t bytes) {
  return cudaMalloc(address, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
FAKE_API ncclResult_t ncclMemFree(void* address) {
  return cudaFree(address) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// --- communicators

FAKE_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "%08x%08x", random(), random());
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id, int rank,
                                             ncclConfig_t* config) {
  return make_communicator(communicator, name_of(id), rank, size, config);
}
FAKE_API ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int size, ncclUniqueId id, int rank) {
  return make_communicator(communicator, name_of(id), rank, size);
}
FAKE_API ncclResult_t ncclCommInitRankScalable(ncclComm_t* communicator, int size, int rank, int, ncclUniqueId* ids,
                                               ncclConfig_t* config) {
  return make_communicator(communicator, name_of(ids[0]), rank, size, config);
}
FAKE_API ncclResult_t ncclCommSplit(ncclComm_t communicator, int color, int key, ncclComm_t* result, ncclConfig_t*) {
  return split(*find(communicator, "ncclCommSplit"), communicator, {color, key}, result);
}
FAKE_API ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  find(communicator, "ncclCommFinalize");
  wait_for_graphs();
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  wait_for_graphs();
  if (withdraw(communicator, "ncclCommDestroy")->in_use) {
    give_up("ncclCommDestroy: in use by another thread");
  }
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  if (communicator == nullptr) {  // as NCCL; torch has none where making one failed
    return ncclSuccess;
  }
  const CommunicatorPtr aborted = withdraw(communicator, "ncclCommAbort");  // freed by whom it interrupts
  aborted->mesh.abort();
  wait_for(residents_of_device(aborted->device));  // with kernels of other communicators: NCCL frees memory there
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  const CommunicatorPtr asked = find(communicator, "ncclCommGetAsyncError");
  *error = std::chrono::steady_clock::now() >= asked->told_from.load() ? asked->error.load() : ncclSuccess;
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommCount(const ncclComm_t communicator, int* size) {
  *size = find(communicator, "ncclCommCount")->mesh.size();
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
  *rank = find(communicator, "ncclCommUserRank")->mesh.rank();
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommCuDevice(const ncclComm_t communicator, int* device) {
  *device = find(communicator, "ncclCommCuDevice")->device;
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommRegister(const ncclComm_t, void* address, size_t, void** handle) {
  *handle = address;
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

FAKE_API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* reduction, void* scalar, ncclDataType_t dtype,
                                               ncclScalarResidence_t, ncclComm_t communicator) {
  const CommunicatorPtr owner = find(communicator, "ncclRedOpCreatePreMulSum");
  const int number = owner->factors.empty() ? ncclNumOps : owner->factors.rbegin()->first + 1;
  owner->factors[number] = read_scalar(scalar, dtype);
  *reduction = static_cast<ncclRedOp_t>(number);
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclRedOpDestroy(ncclRedOp_t reduction, ncclComm_t communicator) {
  find(communicator, "ncclRedOpDestroy")->factors.erase(reduction);
  return ncclSuccess;
}

// --- operations

FAKE_API ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) {
    give_up("ncclGroupEnd without ncclGroupStart");
  }
  return --group_depth > 0 ? ncclSuccess : guarded([] { launch(std::exchange(group, {})); });
}

FAKE_API ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                                    ncclComm_t communicator, cudaStream_t stream) {
  return call({&kAllReduce, in, out, count, dtype, op}, communicator, stream);
}
FAKE_API ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                                 int root, ncclComm_t communicator, cudaStream_t stream) {
  return call({&kReduce, in, out, count, dtype, op, root}, communicator, stream);
}
FAKE_API ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                                        ncclComm_t communicator, cudaStream_t stream) {
  return call({&kReduceScatter, in, out, count, dtype, op}, communicator, stream);
}
FAKE_API ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t dtype,
                                    ncclComm_t communicator, cudaStream_t stream) {
  return call({&kAllGather, in, out, count, dtype}, communicator, stream);
}
FAKE_API ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t dtype, int root,
                                    ncclComm_t communicator, cudaStream_t stream) {
  return call({&kBroadcast, in, out, count, dtype, ncclSum, root}, communicator, stream);
}
FAKE_API ncclResult_t ncclBcast(void* values, size_t count, ncclDataType_t dtype, int root, ncclComm_t communicator,
                                cudaStream_t stream) {
  return ncclBroadcast(values, values, count, dtype, root, communicator, stream);
}
FAKE_API ncclResult_t ncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t dtype,
                                   ncclComm_t communicator, cudaStream_t stream) {
  return call({&kAllToAll, in, out, count, dtype}, communicator, stream);
}
FAKE_API ncclResult_t ncclGather(const void* in, void* out, size_t count, ncclDataType_t dtype, int root,
                                 ncclComm_t communicator, cudaStream_t stream) {
  return call({&kGather, in, out, count, dtype, ncclSum, root}, communicator, stream);
}
FAKE_API ncclResult_t ncclScatter(const void* in, void* out, size_t count, ncclDataType_t dtype, int root,
                                  ncclComm_t communicator, cudaStream_t stream) {
  return call({&kScatter, in, out, count, dtype, ncclSum, root}, communicator, stream);
}
FAKE_API ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t dtype, int peer, ncclComm_t communicator,
                               cudaStream_t stream) {
  return call({&kSend, in, nullptr, count, dtype, ncclSum, peer}, communicator, stream);
}
FAKE_API ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t dtype, int peer, ncclComm_t communicator,
                               cudaStream_t stream) {
  return call({&kRecv, nullptr, out, count, dtype, ncclSum, peer}, communicator, stream);
}

// For tests (ctypes): the process's communicators with this bound of multiprocessors have failed from now on, as NCCL
// finds out beside its calls: ncclCommGetAsyncError() says so, and nothing else.
FAKE_API void fake_nccl_fail(int most_ctas) {
  const std::lock_guard lock(registry().mutex);
  registry().last_error = "a failure that a test asked for";
  for (const auto& [handle, communicator] : registry().communicators) {
    if (communicator->most_ctas == most_ctas) {
      communicator->error = ncclRemoteError;
    }
  }
}
