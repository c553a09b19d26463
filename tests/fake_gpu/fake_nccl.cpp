// NCCL between processes of one machine that have no GPU. An operation, or the outermost ncclGroupEnd(), returns when
// it is done: streams order nothing here (fake_device.cpp).
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "fake_mesh.h"
#include "fake_reductions.h"
#include "fake_runtime.h"

namespace isthmus::fake_gpu {
namespace {

struct Communicator {
  Communicator(const std::string& communicator_name, int rank, int size)
      : name(communicator_name), mesh(communicator_name, rank, size) {
    cudaGetDevice(&device);
  }

  std::string name;
  Mesh mesh;
  int device = 0;
  uint64_t num_collectives = 0;
  int num_splits = 0;
  std::atomic<bool> in_use = false;
  std::atomic<ncclResult_t> error = ncclSuccess;
  std::map<int, double> factors;  // of reductions made by ncclRedOpCreatePreMulSum()
};
using CommunicatorPtr = std::shared_ptr<Communicator>;

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

// Who sends what to whom: parts of `in` and `out` are numbered by rank.
struct Pattern {
  const char* name;
  bool only_from_root = false;
  bool only_to_root = false;
  bool in_has_parts = false;   // one for each receiver
  bool out_has_parts = false;  // one from each sender
  bool reduces = false;        // or else what comes is stored
};
constexpr Pattern kAllReduce = {.name = "AllReduce", .reduces = true};
constexpr Pattern kReduce = {.name = "Reduce", .only_to_root = true, .reduces = true};
constexpr Pattern kReduceScatter = {.name = "ReduceScatter", .in_has_parts = true, .reduces = true};
constexpr Pattern kAllGather = {.name = "AllGather", .out_has_parts = true};
constexpr Pattern kBroadcast = {.name = "Broadcast", .only_from_root = true};
constexpr Pattern kAllToAll = {.name = "AlltoAll", .in_has_parts = true, .out_has_parts = true};
constexpr Pattern kGather = {.name = "Gather", .only_to_root = true, .out_has_parts = true};
constexpr Pattern kScatter = {.name = "Scatter", .only_from_root = true, .in_has_parts = true};
constexpr Pattern kSend = {.name = "Send/Recv"};
constexpr Pattern kRecv = {.name = "Send/Recv"};

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

MessageHeader header_of(const Operation& operation) {
  MessageHeader header;
  std::strcpy(header.operation.data(), operation.pattern->name);
  header.count = operation.count;
  header.dtype = operation.dtype;
  if (operation.is_collective()) {
    header.serial = ++operation.communicator->num_collectives;
    header.reduction = std::min<int>(operation.reduction, ncclNumOps);
    header.root = operation.root;
  }
  if (operation.reduction >= ncclNumOps) {
    const auto factor = operation.communicator->factors.find(operation.reduction);
    if (factor == operation.communicator->factors.end()) {
      give_up("NCCL: %s with a reduction that this communicator does not have", operation.pattern->name);
    }
    header.factor = factor->second;
  }
  return header;
}

void check_buffers(const Operation& operation) {
  const int parts_in = operation.pattern->in_has_parts ? operation.size() : 1;
  const int parts_out = operation.pattern->out_has_parts ? operation.size() : 1;
  check_memory(operation.in, parts_in * operation.bytes, operation.pattern->name);
  check_memory(operation.out, parts_out * operation.bytes, operation.pattern->name);
}

void add_transfer(std::vector<Transfer>& transfers, const Operation& operation, bool sends, int peer, void* data) {
  transfers.push_back({.mesh = &operation.communicator->mesh,
                       .peer = peer,
                       .sends = sends,
                       .data = data,
                       .bytes = operation.bytes,
                       .header = operation.header,
                       .may_be_damaged = !operation.is_collective() || operation.pattern == &kAllToAll});
}

// Adds the operation's messages.
void start(Operation& operation, std::vector<Transfer>& transfers) {
  operation.bytes = operation.count * bytes_of(operation.dtype);
  operation.header = header_of(operation);
  operation.arrived.resize(operation.size());
  operation.incoming.resize(operation.size());
  check_buffers(operation);
  const int own = operation.rank();
  if (!operation.is_collective()) {
    if (operation.root != own) {
      const bool sends = operation.pattern == &kSend;
      add_transfer(transfers, operation, sends, operation.root, sends ? operation.in_part(0) : operation.out_part(0));
    }
    return;
  }
  for (int peer = 0; peer < operation.size(); ++peer) {
    if (peer != own && operation.sends(own, peer)) {
      add_transfer(transfers, operation, true, peer, operation.in_part(peer));
    }
    if (peer != own && operation.sends(peer, own)) {
      operation.arrived[peer].resize(operation.pattern->reduces ? operation.bytes : 0);
      operation.incoming[peer] = transfers.size();
      add_transfer(transfers, operation, false, peer,
                   operation.pattern->reduces ? operation.arrived[peer].data() : operation.out_part(peer));
    }
  }
}

// What is left to do once all messages have come.
void finish(const Operation& operation, const std::vector<Transfer>& transfers) {
  const int own = operation.rank();
  if (!operation.is_collective() || !operation.sends(own, own)) {
    return;
  }
  if (!operation.pattern->reduces) {
    std::memmove(operation.out_part(own), operation.in_part(own), operation.bytes);
    return;
  }
  std::vector<Summand> summands;
  for (int peer = 0; peer < operation.size(); ++peer) {
    summands.push_back(
        peer == own ? Summand{operation.in_part(own), operation.header.factor}
                    : Summand{operation.arrived[peer].data(), transfers[operation.incoming[peer]].header.factor});
  }
  reduce(summands, operation.reduction, operation.dtype, static_cast<int64_t>(operation.count), operation.out);
}

// Sends from a rank to itself meet its receives, in order.
void copy_to_self(const std::vector<Operation>& operations) {
  const auto is_own = [](const Operation& operation, const Pattern& pattern) {
    return operation.pattern == &pattern && operation.root == operation.rank();
  };
  auto receive = operations.begin();
  for (const Operation& send : operations) {
    if (!is_own(send, kSend)) {
      continue;
    }
    receive = std::find_if(receive, operations.end(), [&](const Operation& operation) {
      return is_own(operation, kRecv) && operation.communicator == send.communicator;
    });
    if (receive == operations.end() || receive->bytes != send.bytes) {
      give_up("NCCL: a rank sends to itself, and does not receive it in the same group");
    }
    std::memmove(receive->out, send.in, send.bytes);
    ++receive;
  }
}

// Marks the communicators of some operations as used by this thread.
class InUse {
 public:
  explicit InUse(const std::vector<Operation>& operations) {
    for (const Operation& operation : operations) {
      const bool is_new = std::find(marked_.begin(), marked_.end(), operation.communicator) == marked_.end();
      if (is_new && operation.communicator->in_use.exchange(true)) {
        give_up("NCCL: two threads use one communicator at a time");
      }
      if (is_new) {
        marked_.push_back(operation.communicator);
      }
    }
  }
  ~InUse() {
    for (const CommunicatorPtr& communicator : marked_) {
      communicator->in_use = false;
    }
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  std::vector<CommunicatorPtr> marked_;
};

ncclResult_t run(std::vector<Operation> operations) {
  const InUse in_use(operations);
  std::vector<Transfer> transfers;
  for (Operation& operation : operations) {
    start(operation, transfers);
  }
  const ncclResult_t result = guarded([&] { exchange(transfers); });
  if (result != ncclSuccess) {
    for (const Operation& operation : operations) {
      operation.communicator->error = result;
    }
    return result;
  }
  copy_to_self(operations);
  for (const Operation& operation : operations) {
    finish(operation, transfers);
  }
  return ncclSuccess;
}

thread_local int group_depth = 0;
thread_local std::vector<Operation> group;

ncclResult_t call(Operation operation, ncclComm_t communicator, cudaStream_t stream) {
  check_stream(stream, operation.pattern->name);
  operation.communicator = find(communicator, operation.pattern->name);
  if (group_depth > 0) {
    group.push_back(std::move(operation));
    return ncclSuccess;
  }
  return run({std::move(operation)});
}

ncclResult_t make_communicator(ncclComm_t* handle, const std::string& name, int rank, int size) {
  *handle = nullptr;
  return guarded([&] { *handle = publish(std::make_shared<Communicator>(name, rank, size)); });
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
                                             ncclConfig_t*) {
  return make_communicator(communicator, name_of(id), rank, size);
}
FAKE_API ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int size, ncclUniqueId id, int rank) {
  return make_communicator(communicator, name_of(id), rank, size);
}
FAKE_API ncclResult_t ncclCommInitRankScalable(ncclComm_t* communicator, int size, int rank, int, ncclUniqueId* ids,
                                               ncclConfig_t*) {
  return make_communicator(communicator, name_of(ids[0]), rank, size);
}
FAKE_API ncclResult_t ncclCommSplit(ncclComm_t communicator, int color, int key, ncclComm_t* result, ncclConfig_t*) {
  return split(*find(communicator, "ncclCommSplit"), communicator, {color, key}, result);
}
FAKE_API ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  find(communicator, "ncclCommFinalize");
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  if (withdraw(communicator, "ncclCommDestroy")->in_use) {
    give_up("ncclCommDestroy: in use by another thread");
  }
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  withdraw(communicator, "ncclCommAbort")->mesh.abort();  // freed by whom it interrupts
  return ncclSuccess;
}
FAKE_API ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  *error = find(communicator, "ncclCommGetAsyncError")->error;
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

// Of ncclDevCommCreate() and ncclDevCommDestroy() nothing is needed but that real ones are not called.
FAKE_API ncclResult_t ncclDevCommCreate() { return ncclInvalidUsage; }
FAKE_API ncclResult_t ncclDevCommDestroy() { return ncclInvalidUsage; }
FAKE_API ncclResult_t ncclCommInitAll(ncclComm_t*, int, const int*) { return ncclInvalidUsage; }
FAKE_API ncclResult_t ncclCommShrink(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int) {
  return ncclInvalidUsage;
}
FAKE_API ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t*, int) { return ncclInvalidUsage; }
FAKE_API ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclInvalidUsage; }
FAKE_API ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) { return ncclInvalidUsage; }

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
  return --group_depth > 0 ? ncclSuccess : run(std::exchange(group, {}));
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
