// How BackendIsthmus makes calls, one at a time or several at once; and torch's calls that neither reduce nor
// all-gather: they go to the world backend.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "torch/backend/backend.h"
#include "torch/base/tensors.h"
#include "torch/sides/c10d_transport.h"
#include "torch/works/stand_ins.h"

namespace isthmus::torch_backend {

namespace {

// Returns the bytes of each rank's part of a tensor: of equal ones where there are no splits, which are of dimension 0.
std::vector<int64_t> part_bytes(const at::Tensor& tensor, std::vector<int64_t> splits, int size) {
  splits = splits.empty() ? std::vector<int64_t>(size, 1) : splits;
  splits.resize(size);
  const int64_t rows = std::max<int64_t>(std::accumulate(splits.begin(), splits.end(), int64_t{0}), 1);
  for (int64_t& part : splits) {
    part *= payload_bytes(tensor) / rows;
  }
  return splits;
}

BorderTraffic crossing_parts(const Border& border, const std::vector<int64_t>& sent_bytes,
                             const std::vector<int64_t>& received_bytes) {
  BorderTraffic crossing;
  for (size_t peer = 0; peer < sent_bytes.size(); ++peer) {
    crossing += border.send(sent_bytes[peer], static_cast<int>(peer));
    crossing += border.receive(received_bytes[peer], static_cast<int>(peer));
  }
  return crossing;
}

void require_tag_of_callers(const char* call, int tag) {
  TORCH_CHECK_VALUE(tag < kFirstOwnTag, "isthmus: ", call, " with tag ", tag, ": expected 0 to ", kFirstOwnTag - 1,
                    ": the group's tiers use the ones above");
}

}  // namespace

WorkPtr BackendIsthmus::forward(Side& side, const char* name, BorderTraffic crossing,
                                const std::function<WorkPtr(c10d::Backend&)>& call) {
  bool in_group = false;
  WorkPtr work = side.call_world([&](c10d::Backend& world) {
    in_group = side.abilities().groups && open_group(world);
    return call(world);
  });
  counters_.count_world(name, crossing);
  // NCCL returns null Works for operations that run on the caller's stream alone.
  if (!work || !c10d::isP2POp(work->retrieveOpType())) {  // callers of sends and receives know the peer
    const uint64_t number = counters_.take_sequence_number();
    if (work) {
      work = c10::make_intrusive<WatchedWork>(work, faults_.watcher(number));
    }
  }
  const std::lock_guard lock(mutex_);
  if (work && coalescing_ && !in_group) {
    coalesced_.push_back(work);
  }
  return work;
}

WorkPtr BackendIsthmus::submit(Side& side, TwoTierCall call) {
  if (side.abilities().groups) {
    close_group();  // otherwise the group's operations would start behind work that waits for them
  }
  WorkPtr work = side.submit(std::move(call));
  const std::lock_guard lock(mutex_);
  if (coalescing_) {
    coalesced_.push_back(work);
  }
  return work;
}

std::chrono::milliseconds BackendIsthmus::timeout_or_default(std::chrono::milliseconds timeout) const {
  const std::lock_guard lock(mutex_);
  return timeout > kNoTimeout ? timeout : options_->timeout;
}

// Must not throw: torch would silently drop later collectives.
void BackendIsthmus::startCoalescing() {
  if (!group_.process.is_this()) {
    return;
  }
  try {
    close_group();  // torch does not end coalescing if a call raised inside
  } catch (const std::exception&) {
    // the operations have thrown already, in their own calls
  }
  std::vector<WorkPtr> left_over;  // frees tensors without the lock
  const std::lock_guard lock(mutex_);
  coalescing_ = true;
  left_over.swap(coalesced_);
}

// Returns one Work for all calls since startCoalescing().
WorkPtr BackendIsthmus::endCoalescing() {
  group_.process.require_this();
  close_group();
  const std::lock_guard lock(mutex_);
  coalescing_ = false;
  return c10::make_intrusive<CombinedWork>(group_.rank, c10d::OpType::COALESCED, std::exchange(coalesced_, {}));
}

// Torch does not say on which device it starts to coalesce: the tensors of the first call do.
bool BackendIsthmus::open_group(c10d::Backend& world) {
  {
    const std::lock_guard lock(mutex_);
    if (!coalescing_ || open_group_) {
      return open_group_ != nullptr;
    }
    open_group_ = &world;
  }
  world.startCoalescing();
  return true;
}

void BackendIsthmus::close_group() {
  c10d::Backend* group = nullptr;
  {
    const std::lock_guard lock(mutex_);
    group = std::exchange(open_group_, nullptr);
  }
  if (group == nullptr) {
    return;
  }
  const WorkPtr work = group->endCoalescing();
  const std::lock_guard lock(mutex_);
  if (work) {
    coalesced_.push_back(work);
  }
}

WorkPtr BackendIsthmus::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  Side& side = arrived("broadcast", tensors);
  StandIns own("broadcast", tensors, side.abilities().checks_layouts ? nullptr : is_not_contiguous,
               /*written=*/options.rootRank != group_.rank);
  const int root = static_cast<int>(options.rootRank);
  return forward(side, "broadcast", border_.broadcast(payload_bytes(tensors), root),
                 [&](c10d::Backend& world) { return own.written_back(world.broadcast(own.tensors(), options)); });
}

void BackendIsthmus::require_equal_parts(const char* call, const std::vector<std::vector<at::Tensor>>& lists,
                                         const std::vector<at::Tensor>& own, int root) {
  if (group_.rank != root || lists.size() != 1 || own.size() != 1) {
    return;  // the world backend says what is wrong
  }
  for (const auto& part : lists[0]) {
    if (part.sizes() != own[0].sizes() || part.scalar_type() != own[0].scalar_type()) {
      std::rethrow_exception(faults_.explain(
          {.sequence_number = counters_.next_sequence_number(),
           .operation = call,
           .tensor = describe(own[0].numel(), own[0]),
           .error = c10::str("the root's list has a tensor of sizes ", part.sizes(), " of ", part.scalar_type(),
                             ", and its own has sizes ", own[0].sizes(), ": all ranks' must be equal")}));
    }
  }
}

WorkPtr BackendIsthmus::gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                               const c10d::GatherOptions& options) {
  Side& side = arrived("gather", inputs);
  const int root = static_cast<int>(options.rootRank);
  const BorderTraffic crossing = border_.gather(payload_bytes(inputs), group_.rank, root);
  if (side.abilities().checks_layouts) {
    return forward(side, "gather", crossing,
                   [&](c10d::Backend& world) { return world.gather(outputs, inputs, options); });
  }
  require_equal_parts("gather", outputs, inputs, root);
  const StandIns own("gather", inputs, is_not_contiguous, /*written=*/false);
  std::vector<at::Tensor> sources = at_least_1d(own.tensors());
  std::vector<std::vector<at::Tensor>> lists;
  lists.reserve(outputs.size());
  for (const auto& list : outputs) {
    lists.push_back(at_least_1d(list));
  }
  return forward(side, "gather", crossing, [&](c10d::Backend& world) { return world.gather(lists, sources, options); });
}

#if ISTHMUS_TORCH_HAS_GATHER_SINGLE
WorkPtr BackendIsthmus::gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  Side& side = arrived("gather_single", input);
  return forward(side, "gather_single",
                 border_.gather(payload_bytes(input), group_.rank, static_cast<int>(options.rootRank)),
                 [&](c10d::Backend& world) { return world.gather_single(output, input, options); });
}
#endif

WorkPtr BackendIsthmus::scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                const c10d::ScatterOptions& options) {
  Side& side = arrived("scatter", outputs);
  const int root = static_cast<int>(options.rootRank);
  const BorderTraffic crossing = border_.scatter(payload_bytes(outputs), group_.rank, root);
  if (side.abilities().checks_layouts) {
    return forward(side, "scatter", crossing,
                   [&](c10d::Backend& world) { return world.scatter(outputs, inputs, options); });
  }
  require_equal_parts("scatter", inputs, outputs, root);
  const StandIns own("scatter", outputs, is_not_contiguous);
  std::vector<at::Tensor> targets = at_least_1d(own.tensors());
  std::vector<std::vector<at::Tensor>> lists;
  lists.reserve(inputs.size());
  for (const auto& list : inputs) {
    lists.push_back(at_least_1d(StandIns("scatter", list, is_not_contiguous, /*written=*/false).tensors()));
  }
  return forward(side, "scatter", crossing,
                 [&](c10d::Backend& world) { return own.written_back(world.scatter(targets, lists, options)); });
}

WorkPtr BackendIsthmus::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                      std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  Side& side = arrived("alltoall_base", output);
  const BorderTraffic crossing = crossing_parts(border_, part_bytes(input, input_splits, group_.size),
                                                part_bytes(output, output_splits, group_.size));
  return forward(side, "alltoall_base", crossing, [&](c10d::Backend& world) {
    return world.alltoall_base(output, input, output_splits, input_splits, options);
  });
}

// Gloo has no all-to-all of lists: this concatenates the lists and makes one all-to-all.
WorkPtr BackendIsthmus::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                 const c10d::AllToAllOptions& options) {
  Side& side = arrived("alltoall", inputs);
  const auto size = static_cast<size_t>(getSize());
  TORCH_CHECK_VALUE(outputs.size() == size && inputs.size() == size, "isthmus: all-to-all of ", inputs.size(),
                    " tensors into ", outputs.size(), " over ", size, " ranks: expected one for each rank");
  std::vector<int64_t> sent_bytes;
  std::vector<int64_t> received_bytes;
  for (size_t rank = 0; rank < size; ++rank) {
    sent_bytes.push_back(payload_bytes(inputs[rank]));
    received_bytes.push_back(payload_bytes(outputs[rank]));
  }
  const BorderTraffic crossing = crossing_parts(border_, sent_bytes, received_bytes);
  if (side.abilities().all_to_all_of_lists) {
    return forward(side, "alltoall", crossing,
                   [&](c10d::Backend& world) { return world.alltoall(outputs, inputs, options); });
  }
  std::vector<at::Tensor> flat_inputs;
  std::vector<int64_t> input_splits;
  std::vector<int64_t> output_splits;
  int64_t output_elements = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    TORCH_CHECK_TYPE(
        inputs[rank].scalar_type() == inputs[0].scalar_type() && outputs[rank].scalar_type() == inputs[0].scalar_type(),
        "isthmus: all-to-all of tensors of different types");
    flat_inputs.push_back(inputs[rank].reshape({-1}));
    input_splits.push_back(inputs[rank].numel());
    output_splits.push_back(outputs[rank].numel());
    output_elements += outputs[rank].numel();
  }
  at::Tensor input = at::cat(flat_inputs);
  at::Tensor output = at::empty({output_elements}, input.options());
  auto parts_elements = output_splits;  // Gloo empties the vectors
  return forward(side, "alltoall", crossing, [&](c10d::Backend& world) {
    const auto work = world.alltoall_base(output, input, output_splits, input_splits, options);
    return followed_by(work, outputs, [output, outputs, parts_elements] {
      const auto parts = output.split_with_sizes(parts_elements);
      for (size_t rank = 0; rank < outputs.size(); ++rank) {
        write(outputs[rank], parts[rank].view(outputs[rank].sizes()));
      }
    });
  });
}

WorkPtr BackendIsthmus::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  require_tag_of_callers("send", tag);
  Side& side = arrived_on(side_of("send", tensors), "send", /*is_collective=*/false);
  return forward(side, "send", border_.send(payload_bytes(tensors), destination),
                 [&](c10d::Backend& world) { return world.send(tensors, destination, tag); });
}

WorkPtr BackendIsthmus::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  require_tag_of_callers("recv", tag);
  Side& side = arrived_on(side_of("recv", tensors), "recv", /*is_collective=*/false);
  return forward(side, "recv", border_.receive(payload_bytes(tensors), source),
                 [&](c10d::Backend& world) { return world.recv(tensors, source, tag); });
}

WorkPtr BackendIsthmus::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  require_tag_of_callers("recv", tag);
  Side& side = arrived_on(side_of("recvAnysource", tensors), "recvAnysource", /*is_collective=*/false);
  return forward(side, "recvAnysource", {},  // nobody knows yet from where
                 [&](c10d::Backend& world) { return world.recvAnysource(tensors, tag); });
}

// Torch does not pass on the device: the barrier is for the GPU that the group is bound to, else for the host.
WorkPtr BackendIsthmus::barrier(const c10d::BarrierOptions& options) {
  const auto bound = bound_device();
  const bool on_gpu = cuda_ && (bound || !options.device_ids.empty());
  Side& side = arrived_on(on_gpu ? *cuda_ : cpu_, "barrier");
  c10d::BarrierOptions own = options;
  if (on_gpu && own.device_ids.empty()) {
    own.device_ids.push_back(bound->index());
  }
  const WorkPtr earlier = side.submitted();  // the world backend does not know these calls
  WorkPtr passed = forward(side, "barrier", {}, [&](c10d::Backend& world) { return world.barrier(own); });
  if (!earlier) {
    return passed;
  }
  return c10::make_intrusive<CombinedWork>(group_.rank, c10d::OpType::BARRIER, std::vector{earlier, std::move(passed)},
                                           std::vector<at::Tensor>{});
}

void BackendIsthmus::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  arrived_on(cpu_, "monitored_barrier");
  cpu_.world()->monitoredBarrier(options, wait_all_ranks);
}

bool BackendIsthmus::supportsTensorAlloc(c10::DeviceIndex device) {
  return device_backend()->supportsTensorAlloc(device);
}

std::shared_ptr<c10::Allocator> BackendIsthmus::getMemAllocator() { return device_backend()->getMemAllocator(); }

at::Tensor BackendIsthmus::allocateTensor(long size, at::TensorOptions options) {
  return device_backend()->allocateTensor(size, options);
}

void BackendIsthmus::enableCollectivesTiming() { device_backend()->enableCollectivesTiming(); }

void BackendIsthmus::eagerConnectSingleDevice(at::Device device) {
  if (!device.is_cuda()) {
    cpu_.connect(device);
    return;
  }
  group_.process.require_this();
  Side& side = cuda_side("connecting");
  faults_.require_usable();
  bind(device);
  side.connect(device);
}

void BackendIsthmus::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  if (group_.owns_worlds) {
    for (Side* side : sides_) {
      side->world()->setGroupUid(uid);
    }
  }
}

}  // namespace isthmus::torch_backend
