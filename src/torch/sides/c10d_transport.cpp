#include "torch/sides/c10d_transport.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "base/stable_hash.h"
#include "isthmus/error.h"
#include "torch/faults/fault_board.h"

namespace isthmus::torch_backend {
namespace {

// Nobody sends a message with it: close_connections() waits for one.
constexpr int kAbortTag = INT_MAX;

int place_of(int rank, const std::vector<int>& ranks) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

// Messages are paired by tag. The tag also encodes the operation: if ranks disagree about it, nothing arrives and the
// deadline passes. Gloo never sees a message of another size than it expects, for which it is not made.
class C10dTransport::Messages final : public MessageTransport::Exchange {
 public:
  Messages(C10dTransport& transport, Operation operation)
      : Exchange(transport, operation), transport_(transport), number_(transport.next_exchange_++) {}

  void wait(Stream /*stream*/) override {
    for (auto& message : messages_) {
      with_peer_named(message.what, message.peer, [&] {
        const auto begin = Clock::now();
        const bool arrived = message.work->wait(remaining());
        ISTHMUS_CHECK(TransportError, arrived, "aborted");
        count_wait(message.peer, Clock::now() - begin);
      });
    }
    messages_.clear();
  }

 private:
  struct Message {
    const char* what;
    int peer;
    c10::intrusive_ptr<c10d::Work> work;
  };

  void post(bool receives, int peer, Buffer buffer) override {
    const char* const what = receives ? "receiving from" : "sending to";
    with_peer_named(what, peer, [&] {
      c10d::Backend& backend = *transport_.backend_;
      const int rank = transport_.ranks_[peer];
      std::vector<at::Tensor> tensors{at::from_blob(buffer.data, {buffer.bytes()}, at::kByte)};
      messages_.push_back(
          {what, peer, receives ? backend.recv(tensors, rank, tag(buffer)) : backend.send(tensors, rank, tag(buffer))});
    });
  }

  int tag(ConstBuffer buffer) const {
    const auto hash = StableHash().add(transport_.tier()).add(to_string(operation())).add(number_).add(buffer.bytes());
    return kFirstOwnTag + static_cast<int>(hash.value() % (kAbortTag - kFirstOwnTag));
  }

  std::chrono::milliseconds remaining() const {
    if (transport_.deadline() == Clock::time_point::max()) {
      return kNoTimeout;  // the backend applies its own
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(transport_.deadline() - Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }

  template <typename Action>
  void with_peer_named(const char* what, int peer, Action action) {
    const auto where = [&] {
      return detail::concatenate(transport_.tier(), " ", to_string(operation()), ", ", what, " rank ",
                                 transport_.global_rank(peer), ": ");
    };
    ISTHMUS_CHECK(TransportError, !transport_.aborted_, where(), "aborted");
    try {
      action();
    } catch (const std::exception& error) {
      throw TransportError(where() + first_line(error.what()));
    }
  }

  C10dTransport& transport_;
  const int64_t number_;
  std::vector<Message> messages_;
};

C10dTransport::C10dTransport(std::string tier, BackendPtr backend, std::vector<int> ranks,
                             std::vector<int> global_ranks, const std::vector<int>& node_of_rank)
    : MessageTransport(std::move(tier), place_of(backend->getRank(), ranks), std::move(global_ranks), node_of_rank),
      backend_(std::move(backend)),
      ranks_(std::move(ranks)) {}

std::unique_ptr<MessageTransport::Exchange> C10dTransport::start_exchange(Operation operation) {
  return std::make_unique<Messages>(*this, operation);
}

// The first receive that times out closes all connections. One from a rank that is lost fails without that.
void close_connections(c10d::Backend& backend) {
  const auto attempt = [](const auto& action) {
    try {
      action();
    } catch (const std::exception&) {
      // The timeout is intended.
    }
  };
  attempt([&] { backend.abort(); });  // does nothing on Gloo
  for (int distance = 1; distance < backend.getSize(); ++distance) {
    attempt([&] {
      std::vector<at::Tensor> tensors{at::empty({1}, at::kByte)};
      const int peer = (backend.getRank() + distance) % backend.getSize();
      backend.recv(tensors, peer, kAbortTag)->wait(std::chrono::milliseconds(1));
    });
  }
}

}  // namespace isthmus::torch_backend
