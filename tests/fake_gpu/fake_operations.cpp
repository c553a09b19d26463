#include "fake_operations.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "fake_runtime.h"

namespace isthmus::fake_gpu {
namespace {

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
  header.factor = operation.factor;
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

// How long after a failed operation has returned as if it were done its communicator says so; 0: it fails in the call.
std::chrono::milliseconds delay_of_errors() {
  const char* milliseconds = std::getenv("FAKE_NCCL_TELLS_AFTER_MS");
  return std::chrono::milliseconds(milliseconds == nullptr ? 0 : std::atol(milliseconds));
}

}  // namespace

void run(std::vector<Operation> operations) {
  const DeviceWork work;
  const InUse in_use(operations);
  std::vector<Transfer> transfers;
  for (Operation& operation : operations) {
    start(operation, transfers);
  }
  try {
    exchange(transfers);
  } catch (const NcclError& error) {
    const std::chrono::milliseconds delay = delay_of_errors();
    for (const Operation& operation : operations) {
      if (operation.communicator->error == ncclSuccess) {
        operation.communicator->told_from = std::chrono::steady_clock::now() + delay;
      }
      operation.communicator->error = nccl_spins() ? ncclSuccess : error.result();
    }
    if (delay.count() > 0) {
      return;
    }
    throw;
  }
  copy_to_self(operations);
  for (const Operation& operation : operations) {
    finish(operation, transfers);
  }
}

namespace {

// For how long a call waits for its kernel: while peers come in time, all is done when calls return.
constexpr std::chrono::milliseconds kLaunchPatience(1000);

// The kernels that a launch is behind: in its streams, and in its communicators.
std::vector<ResidentPtr> kernels_before(const std::vector<Operation>& operations) {
  std::vector<ResidentPtr> before;
  for (const Operation& operation : operations) {
    const std::vector<ResidentPtr> in_stream = residents_of(operation.stream);
    before.insert(before.end(), in_stream.begin(), in_stream.end());
    if (operation.communicator->latest_kernel) {
      before.push_back(operation.communicator->latest_kernel);
    }
  }
  std::erase_if(before, [](const ResidentPtr& kernel) { return kernel->ended.load(); });
  return before;
}

// A peer that has gone, too, leaves a kernel spinning.
void run_or_spin(const std::vector<Operation>& operations) {
  try {
    run(operations);
  } catch (const NcclError&) {
    const auto is_aborted = [](const Operation& operation) { return operation.communicator->mesh.aborted(); };
    while (std::none_of(operations.begin(), operations.end(), is_aborted)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

// A part that comes from where it goes to, as in a gather in place, is not written.
void add_uses(const Operation& operation, std::vector<test::MemoryUse>& uses) {
  const auto bytes = static_cast<int64_t>(operation.count * bytes_of(operation.dtype));
  const auto* in = static_cast<const std::byte*>(operation.in);
  const auto* out = static_cast<const std::byte*>(operation.out);
  if (in != nullptr) {
    uses.push_back(test::reads(in, (operation.pattern->in_has_parts ? operation.size() : 1) * bytes));
  }
  for (int from = 0; out != nullptr && from < (operation.pattern->out_has_parts ? operation.size() : 1); ++from) {
    if (out + from * bytes != in) {
      uses.push_back(test::writes(out + from * bytes, bytes));
    }
  }
}

// Operations of one communicator in one stream are one kernel, which is named after the last.
void note_launches(const std::vector<Operation>& operations) {
  std::map<std::pair<const Communicator*, cudaStream_t>, std::vector<const Operation*>> kernels;
  for (const Operation& operation : operations) {
    kernels[{operation.communicator.get(), operation.stream}].push_back(&operation);
  }
  for (const auto& [place, of_kernel] : kernels) {
    count(Count::kNcclLaunches);
    std::vector<test::MemoryUse> uses;
    for (const Operation* operation : of_kernel) {
      add_uses(*operation, uses);
    }
    trace_work(of_kernel.back()->pattern->name, place.second, uses);
  }
}

}  // namespace

void launch(std::vector<Operation> operations) {
  note_launches(operations);
  if (!nccl_spins() || operations.empty()) {
    run(std::move(operations));
    return;
  }
  const std::vector<ResidentPtr> before = kernels_before(operations);
  const auto kernel = std::make_shared<Resident>();
  kernel->device = operations.front().communicator->device;
  for (const Operation& operation : operations) {
    add_resident(operation.stream, kernel);
    operation.communicator->latest_kernel = kernel;
  }
  std::thread([before, kernel, operations = std::move(operations)] {
    wait_for(before);
    run_or_spin(operations);
    kernel->ended = true;
  }).detach();
  const auto until = std::chrono::steady_clock::now() + kLaunchPatience;
  while (before.empty() && !kernel->ended && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace isthmus::fake_gpu
