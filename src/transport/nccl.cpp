#include "transport/nccl.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <thread>
#include <utility>

#include "cuda/cuda_calls.h"
#include "isthmus/error.h"
#include "kernels/block/float_types.h"

namespace isthmus {
namespace {

// How long abort() waits for a call to return before it assumes that the call hangs.
constexpr std::chrono::seconds kCallPatience(1);

ncclDataType_t nccl_type(DataType dtype) {
  switch (dtype) {
    case DataType::kByte:
      return ncclUint8;
    case DataType::kFloat32:
      return ncclFloat32;
    case DataType::kBFloat16:
      return ncclBfloat16;
    case DataType::kFloat16:
      return ncclFloat16;
    case DataType::kFloat64:
      return ncclFloat64;
  }
  throw Error(detail::concatenate("unknown data type ", static_cast<int>(dtype)));
}

// An operation that is enqueued on its stream; only other streams wait for it.
class StreamHandle final : public Handle {
 public:
  StreamHandle(int ordinal, Stream stream) : ordinal_(ordinal), stream_(stream) {}

  void wait(Stream stream) override {
    if (stream.handle == stream_.handle) {
      return;
    }
    const CurrentDevice current(ordinal_);
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags", ordinal_);
    const cudaError_t recorded = cudaEventRecord(event, cuda_stream(stream_));
    const cudaError_t waits = recorded == cudaSuccess ? cudaStreamWaitEvent(cuda_stream(stream), event, 0) : recorded;
    cudaEventDestroy(event);  // CUDA keeps it until nothing waits for it
    check_cuda(waits, "cudaStreamWaitEvent", ordinal_);
  }

 private:
  const int ordinal_;
  const Stream stream_;
};

// Making a communicator waits for its other ranks, for which NCCL has no time limit. So a thread makes it, and is
// abandoned if it takes too long.
struct Creation {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;  // guarded by `mutex`, like what follows
  ncclResult_t result = ncclInProgress;
  std::string error;
  ncclComm_t comm = nullptr;
};

ncclComm_t create_comm(const std::string& who, int rank, int size, int ordinal, int max_ctas, const ncclUniqueId& id,
                       std::chrono::milliseconds timeout) {
  const auto creation = std::make_shared<Creation>();
  std::thread([=] {
    cudaSetDevice(ordinal);
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = max_ctas;
    const ncclResult_t result = ncclCommInitRankConfig(&comm, size, id, rank, &config);
    const std::lock_guard lock(creation->mutex);
    creation->error = result == ncclSuccess ? "" : ncclGetLastError(nullptr);
    creation->result = result;
    creation->comm = comm;
    creation->done = true;
    creation->changed.notify_one();
  }).detach();
  std::unique_lock lock(creation->mutex);
  ISTHMUS_CHECK(TransportError, creation->changed.wait_for(lock, timeout, [&] { return creation->done; }), who,
                ": ncclCommInitRankConfig: timed out after ", timeout.count(), " ms: not all of its ", size,
                " ranks came");
  ISTHMUS_CHECK(TransportError, creation->result == ncclSuccess, who,
                ": ncclCommInitRankConfig: ", ncclGetErrorString(creation->result), ": ", creation->error);
  return creation->comm;
}

}  // namespace

std::shared_ptr<NcclTransport> NcclTransport::create(const std::string& name, int rank,
                                                     const std::vector<int>& global_ranks,
                                                     const std::vector<int>& node_of_rank, int ordinal, int max_ctas,
                                                     const ncclUniqueId& id, std::chrono::milliseconds timeout) {
  const int size = static_cast<int>(global_ranks.size());
  const std::string who = detail::concatenate(name, " tier, rank ", global_ranks[rank]);
  const ncclComm_t comm = create_comm(who, rank, size, ordinal, max_ctas, id, timeout);
  return std::shared_ptr<NcclTransport>(new NcclTransport(who, rank, node_of_rank, ordinal, comm));
}

NcclTransport::NcclTransport(std::string who, int rank, const std::vector<int>& node_of_rank, int ordinal,
                             ncclComm_t comm)
    : who_(std::move(who)), rank_(rank), node_of_rank_(node_of_rank), ordinal_(ordinal), comm_(comm) {
  Float16 factor = to_float16(static_cast<float>(1 / sum_type(DataType::kFloat16).divisor));
  check(ncclRedOpCreatePreMulSum(&scaled_sum_, &factor, ncclFloat16, ncclScalarHostImmediate, comm_),
        "ncclRedOpCreatePreMulSum");
}

// If the GPU cannot be chosen any more, this ends the process.
NcclTransport::~NcclTransport() {  // NOLINT(bugprone-exception-escape)
  if (!aborted_) {
    const CurrentDevice current(ordinal_);
    ncclCommDestroy(comm_);
  }
}

SumType NcclTransport::sum_type(DataType in) const {
  if (in != DataType::kFloat16) {
    return {in};
  }
  return {in, static_cast<double>(std::bit_ceil(static_cast<unsigned>(size())))};
}

void NcclTransport::check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) {
    return;
  }
  const std::string reason = ncclGetLastError(comm_);
  close_groups();
  throw TransportError(detail::concatenate(who_, ": ", call, ": ", ncclGetErrorString(result), ": ", reason));
}

void NcclTransport::check_open() {
  if (aborted_) {
    close_groups();
    throw TransportError(detail::concatenate(who_, ": aborted"));
  }
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
  check(state, "an earlier operation");
}

template <typename Call>
HandlePtr NcclTransport::enqueue(Stream stream, const Call& call) {
  const std::lock_guard lock(in_call_);
  check_open();
  const CurrentDevice current(ordinal_);
  call(cuda_stream(stream));
  return std::make_unique<StreamHandle>(ordinal_, stream);
}

void NcclTransport::begin_group() {
  std::unique_lock lock(in_call_);
  check_open();
  start_group();
  in_group_ = std::move(lock);
}

void NcclTransport::end_group() {
  const std::unique_lock lock = std::move(in_group_);
  if (group_depth_ > 0) {
    const CurrentDevice current(ordinal_);
    finish_group();
  }
}

void NcclTransport::throw_if_failed() {
  const std::unique_lock lock(in_call_, std::try_to_lock);
  if (lock.owns_lock()) {
    check_open();
  }
}

void NcclTransport::close_groups() {
  for (; group_depth_ > 0; --group_depth_) {
    ncclGroupEnd();
  }
}

void NcclTransport::start_group() {
  check(ncclGroupStart(), "ncclGroupStart");
  ++group_depth_;
}

void NcclTransport::finish_group() {
  --group_depth_;
  check(ncclGroupEnd(), "ncclGroupEnd");
}

HandlePtr NcclTransport::reduce_scatter(ConstBuffer in, Buffer out, Stream stream) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements * size() && out.dtype == in.dtype, who_,
                ": reduce-scatter of ", in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements, " x ",
                to_string(out.dtype), " over ", size(), " ranks");
  HandlePtr handle = enqueue(stream, [&](cudaStream_t on) {
    check(ncclReduceScatter(in.data, out.data, static_cast<size_t>(out.num_elements), nccl_type(in.dtype),
                            in.dtype == DataType::kFloat16 ? scaled_sum_ : ncclSum, comm_, on),
          "ncclReduceScatter");
  });
  count_sent([&](int /*peer*/) { return out.bytes(); });
  return handle;
}

HandlePtr NcclTransport::all_to_all(ConstBuffer in, Buffer out, Stream stream) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements && in.dtype == out.dtype && in.num_elements % size() == 0,
                who_, ": all-to-all of ", in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements,
                " x ", to_string(out.dtype), " over ", size(), " ranks");
  const int64_t part_elements = in.num_elements / size();
  const auto count = static_cast<size_t>(part_elements);
  HandlePtr handle = enqueue(stream, [&](cudaStream_t on) {
    start_group();
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) {
        continue;
      }
      check(ncclSend(in.part(peer, part_elements).data, count, nccl_type(in.dtype), peer, comm_, on), "ncclSend");
      check(ncclRecv(out.part(peer, part_elements).data, count, nccl_type(in.dtype), peer, comm_, on), "ncclRecv");
    }
    finish_group();
  });
  count_sent([&](int peer) { return in.part(peer, part_elements).bytes(); });
  return handle;
}

HandlePtr NcclTransport::all_gather(ConstBuffer in, Buffer out, Stream stream) {
  ISTHMUS_CHECK(Error, in.num_elements * size() == out.num_elements && in.dtype == out.dtype, who_, ": all-gather of ",
                in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements, " x ", to_string(out.dtype),
                " over ", size(), " ranks");
  HandlePtr handle = enqueue(stream, [&](cudaStream_t on) {
    check(ncclAllGather(in.data, out.data, static_cast<size_t>(in.num_elements), nccl_type(in.dtype), comm_, on),
          "ncclAllGather");
  });
  count_sent([&](int /*peer*/) { return in.bytes(); });
  return handle;
}

HandlePtr NcclTransport::all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream stream) {
  ISTHMUS_CHECK(Error, static_cast<int>(out.size()) == size(), who_, ": uneven all-gather into ", out.size(),
                " buffers over ", size(), " ranks");
  HandlePtr handle = enqueue(stream, [&](cudaStream_t on) {
    start_group();
    for (int peer = 0; peer < size(); ++peer) {
      const Buffer& arriving = out[static_cast<size_t>(peer)];
      if (peer != rank() && in.num_elements > 0) {
        check(ncclSend(in.data, static_cast<size_t>(in.num_elements), ncclUint8, peer, comm_, on), "ncclSend");
      }
      if (peer != rank() && arriving.num_elements > 0) {
        check(ncclRecv(arriving.data, static_cast<size_t>(arriving.num_elements), ncclUint8, peer, comm_, on),
              "ncclRecv");
      }
    }
    finish_group();
  });
  count_sent([&](int /*peer*/) { return in.bytes(); });
  return handle;
}

HandlePtr NcclTransport::all_reduce(Buffer data, ReduceOp op, Stream stream) {
  ISTHMUS_CHECK(Error, op == ReduceOp::kSum, who_, ": NCCL has no bitwise or");
  HandlePtr handle = enqueue(stream, [&](cudaStream_t on) {
    check(ncclAllReduce(data.data, data.data, static_cast<size_t>(data.num_elements), nccl_type(data.dtype), ncclSum,
                        comm_, on),
          "ncclAllReduce");
  });
  // Chunk p goes to rank p, which sums it and sends the sum to all.
  const auto chunk_bytes = [&](int owner) {
    const int64_t begin = data.num_elements * owner / size();
    return (data.num_elements * (owner + 1) / size() - begin) * element_bytes(data.dtype);
  };
  count_sent([&](int peer) { return chunk_bytes(peer) + chunk_bytes(rank()); });
  return handle;
}

template <typename BytesTo>
void NcclTransport::count_sent(const BytesTo& bytes_to) {
  const std::lock_guard lock(traffic_mutex_);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) {
      const int64_t bytes = bytes_to(peer);
      traffic_.sent_bytes += bytes;
      traffic_.inter_node_sent_bytes += node_of_rank_[peer] != node_of_rank_[rank()] ? bytes : 0;
    }
  }
}

Traffic NcclTransport::traffic() const {
  const std::lock_guard lock(traffic_mutex_);
  return traffic_;
}

void NcclTransport::abort() {
  if (aborted_.exchange(true)) {
    return;
  }
  const std::unique_lock no_call_is_under_way(in_call_, kCallPatience);
  const CurrentDevice current(ordinal_);
  if (no_call_is_under_way.owns_lock()) {
    close_groups();  // by now they belong to this thread
  }
  ncclCommAbort(comm_);
}

Tiers nccl_tiers(int rank, const NodeMap& map, int ordinal, const NcclBroadcast& broadcast,
                 std::chrono::milliseconds timeout) {
  ISTHMUS_CHECK(Error, rank >= 0 && rank < map.world_size(), "rank ", rank, " is not in 0..", map.world_size() - 1);
  map.require_even();
  // Two ids for each node, for its tier and its gathers' tier; then two for each rail.
  const int num_nodes = map.num_nodes();
  const int num_rails = map.ranks_per_node();
  std::vector<ncclUniqueId> ids(static_cast<size_t>(2 * (num_nodes + num_rails)));
  if (rank == 0) {
    for (ncclUniqueId& id : ids) {
      const ncclResult_t result = ncclGetUniqueId(&id);
      ISTHMUS_CHECK(TransportError, result == ncclSuccess, "ncclGetUniqueId: ", ncclGetErrorString(result), ": ",
                    ncclGetLastError(nullptr));
    }
  }
  broadcast(ids.data(), static_cast<int64_t>(ids.size() * sizeof(ncclUniqueId)));

  const auto tier = [&](const char* name, const std::vector<int>& ranks, int max_ctas, int id) {
    std::shared_ptr<Transport> transport;
    if (ranks.size() > 1) {
      std::vector<int> nodes(ranks.size());
      std::transform(ranks.begin(), ranks.end(), nodes.begin(), [&](int member) { return map.node(member); });
      const auto own = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
      transport = NcclTransport::create(name, own, ranks, nodes, ordinal, max_ctas, ids[id], timeout);
    }
    return transport;
  };
  const std::vector<int> node = map.node_ranks(map.node(rank));
  const std::vector<int> rail = map.rail_ranks(map.local_index(rank));
  Tiers tiers;
  tiers.intra = tier("intra", node, kIntraMaxCtas, map.node(rank));
  tiers.gather_intra = tier("gather-intra", node, kIntraMaxCtas, num_nodes + map.node(rank));
  tiers.inter = tier("inter", rail, kInterMaxCtas, 2 * num_nodes + map.local_index(rank));
  tiers.gather_inter = tier("gather-inter", rail, kInterMaxCtas, 2 * num_nodes + num_rails + map.local_index(rank));
  return tiers;
}

std::string nccl_version() {
  int version = 0;  // 10000 major + 100 minor + patch
  ncclGetVersion(&version);
  return detail::concatenate(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace isthmus
