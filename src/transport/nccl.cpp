#include "transport/nccl.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <thread>
#include <utility>

#include "cuda/cuda_calls.h"
#include "isthmus/error.h"
#include "kernels/block/float_types.h"
#include "transport/on_host.h"

namespace isthmus {
namespace {

// How long abort() waits for a call to return before it assumes that the call hangs.
constexpr std::chrono::seconds kCallPatience(1);
// How often a thread that connects looks whether another one aborts.
constexpr std::chrono::milliseconds kAbortPause(20);

std::string failure_text(const char* call, ncclResult_t result, ncclComm_t comm = nullptr) {
  return detail::concatenate(call, ": ", ncclGetErrorString(result), ": ", ncclGetLastError(comm));
}

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

}  // namespace

// Making a communicator waits for its other ranks, for which NCCL has no time limit. So a thread makes it, and is
// abandoned if it takes too long.
struct NcclTransport::Creation {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;  // guarded by `mutex`, like what follows
  bool abandoned = false;
  std::string error;
  ncclComm_t comm = nullptr;

  void run(const NcclTierPlace& place, const std::function<ncclUniqueId()>& id) {
    std::string failure;
    ncclComm_t made = nullptr;
    try {
      const CurrentDevice current(place.ordinal);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.maxCTAs = place.max_ctas;
      const auto size = static_cast<int>(place.global_ranks.size());
      const ncclResult_t result = ncclCommInitRankConfig(&made, size, id(), place.rank, &config);
      failure = result == ncclSuccess ? "" : failure_text("ncclCommInitRankConfig", result);
    } catch (const std::exception& error_of_id) {
      failure = error_of_id.what();
    }
    const std::lock_guard lock(mutex);
    if (abandoned && made != nullptr) {
      ncclCommAbort(made);
      return;
    }
    error = failure;
    comm = made;
    done = true;
    changed.notify_one();
  }
};

NcclTransport::NcclTransport(NcclTierPlace place, std::function<ncclUniqueId()> id, std::chrono::milliseconds timeout)
    : place_(std::move(place)),
      who_(detail::concatenate(place_.name, " tier, rank ", place_.global_ranks[place_.rank])),
      id_(std::move(id)),
      timeout_(timeout) {}

void NcclTransport::connect() {
  const std::lock_guard lock(in_call_);
  if (comm_ != nullptr || aborted_) {
    return;
  }
  const auto creation = std::make_shared<Creation>();
  std::thread([creation, place = place_, id = id_] { creation->run(place, id); }).detach();
  try {
    comm_ = wait_for(creation);
  } catch (const TransportError&) {
    aborted_ = true;
    throw;
  }
  Float16 factor = to_float16(static_cast<float>(1 / sum_type(DataType::kFloat16).divisor));
  check(ncclRedOpCreatePreMulSum(&scaled_sum_, &factor, ncclFloat16, ncclScalarHostImmediate, comm_),
        "ncclRedOpCreatePreMulSum");
}

ncclComm_t NcclTransport::wait_for(const std::shared_ptr<Creation>& creation) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  std::unique_lock lock(creation->mutex);
  const auto is_done = [&] { return creation->done; };
  while (!creation->changed.wait_for(lock, kAbortPause, is_done)) {
    const bool late = std::chrono::steady_clock::now() >= deadline;
    creation->abandoned = aborted_ || late;
    ISTHMUS_CHECK(TransportError, !aborted_, who_, ": aborted");
    ISTHMUS_CHECK(TransportError, !late, who_, ": timed out after ", timeout_.count(), " ms: not all of its ", size(),
                  " ranks came");
  }
  ISTHMUS_CHECK(TransportError, creation->error.empty(), who_, ": ", creation->error);
  return creation->comm;
}

// If the GPU cannot be chosen any more, this ends the process.
NcclTransport::~NcclTransport() {  // NOLINT(bugprone-exception-escape)
  if (comm_ != nullptr) {
    const CurrentDevice current(place_.ordinal);
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
  const std::string text = failure_text(call, result, comm_);
  close_groups();
  throw TransportError(detail::concatenate(who_, ": ", text));
}

void NcclTransport::check_open() {
  if (aborted_) {
    close_groups();
    throw TransportError(detail::concatenate(who_, ": aborted"));
  }
  if (comm_ == nullptr) {
    return;
  }
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
  check(state, "an earlier operation");
}

template <typename Call>
HandlePtr NcclTransport::enqueue(Stream stream, const Call& call) {
  const std::lock_guard lock(in_call_);
  connect();
  check_open();
  const CurrentDevice current(place_.ordinal);
  call(cuda_stream(stream));
  return std::make_unique<StreamHandle>(place_.ordinal, stream);
}

void NcclTransport::begin_group() {
  std::unique_lock lock(in_call_);
  connect();
  check_open();
  start_group();
  in_group_ = std::move(lock);
}

void NcclTransport::end_group() {
  const std::unique_lock lock = std::move(in_group_);
  if (group_depth_ > 0) {
    const CurrentDevice current(place_.ordinal);
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
  count_parts(out.bytes());
  return handle;
}

HandlePtr NcclTransport::all_to_all(ConstBuffer in, Buffer out, Stream stream) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements && in.dtype == out.dtype && in.num_elements % size() == 0,
                who_, ": all-to-all of ", in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements,
                " x ", to_string(out.dtype), " over ", size(), " ranks");
  const int64_t part_elements = in.num_elements / size();
  return exchange(
      stream, [&](int peer) { return in.part(peer, part_elements); },
      [&](int peer) { return out.part(peer, part_elements); });
}

HandlePtr NcclTransport::all_gather(ConstBuffer in, Buffer out, Stream stream) {
  ISTHMUS_CHECK(Error, in.num_elements * size() == out.num_elements && in.dtype == out.dtype, who_, ": all-gather of ",
                in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements, " x ", to_string(out.dtype),
                " over ", size(), " ranks");
  HandlePtr handle = all_gather_uncounted(in, out, stream);
  count_parts(in.bytes());
  return handle;
}

HandlePtr NcclTransport::all_gather_uncounted(ConstBuffer in, Buffer out, Stream stream) {
  return enqueue(stream, [&](cudaStream_t on) {
    check(ncclAllGather(in.data, out.data, static_cast<size_t>(in.num_elements), nccl_type(in.dtype), comm_, on),
          "ncclAllGather");
  });
}

HandlePtr NcclTransport::all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream stream) {
  ISTHMUS_CHECK(Error, static_cast<int>(out.size()) == size(), who_, ": uneven all-gather into ", out.size(),
                " buffers over ", size(), " ranks");
  return exchange(
      stream, [&](int /*peer*/) { return in; }, [&](int peer) { return out[static_cast<size_t>(peer)]; });
}

HandlePtr NcclTransport::pass_on(ConstBuffer in, Buffer out, Stream stream) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements && in.dtype == out.dtype, who_, ": pass-on of ",
                in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements, " x ", to_string(out.dtype));
  return exchange(
      stream, [&](int peer) { return peer == neighbour(1) ? in : ConstBuffer{}; },
      [&](int peer) { return peer == neighbour(-1) ? out : Buffer{}; });
}

template <typename PartTo, typename PartFrom>
HandlePtr NcclTransport::exchange(Stream stream, const PartTo& part_to, const PartFrom& part_from) {
  HandlePtr handle = enqueue(stream, [&](cudaStream_t on) {
    start_group();
    for (int peer = 0; peer < size(); ++peer) {
      const ConstBuffer sent = part_to(peer);
      const Buffer arriving = part_from(peer);
      if (peer != rank() && sent.num_elements > 0) {
        check(ncclSend(sent.data, static_cast<size_t>(sent.num_elements), nccl_type(sent.dtype), peer, comm_, on),
              "ncclSend");
      }
      if (peer != rank() && arriving.num_elements > 0) {
        check(ncclRecv(arriving.data, static_cast<size_t>(arriving.num_elements), nccl_type(arriving.dtype), peer,
                       comm_, on),
              "ncclRecv");
      }
    }
    finish_group();
  });
  count_sent([&](int peer) { return part_to(peer).bytes(); });
  return handle;
}

// Around the ring where links are of both kinds, else straight to the owners.
void NcclTransport::count_parts(int64_t part_bytes) {
  const bool ring = has_links_of_both_kinds(place_.node_of_rank);
  const int64_t to_next = ring ? (size() - 1) * part_bytes : part_bytes;
  count_sent([&](int peer) { return peer == neighbour(1) ? to_next : ring ? 0 : part_bytes; });
}

template <typename BytesTo>
void NcclTransport::count_sent(const BytesTo& bytes_to) {
  const std::lock_guard lock(traffic_mutex_);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) {
      const int64_t bytes = bytes_to(peer);
      traffic_.sent_bytes += bytes;
      traffic_.inter_node_sent_bytes += place_.node_of_rank[peer] != place_.node_of_rank[rank()] ? bytes : 0;
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
  const ncclComm_t comm = comm_.exchange(nullptr);
  if (comm == nullptr) {
    return;
  }
  const CurrentDevice current(place_.ordinal);
  if (no_call_is_under_way.owns_lock()) {
    close_groups();  // by now they belong to this thread
  }
  ncclCommAbort(comm);
}

}  // namespace isthmus
