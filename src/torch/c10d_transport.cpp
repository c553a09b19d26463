#include "torch/c10d_transport.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "isthmus/error.h"
#include "stable_hash.h"
#include "transport/combine.h"

namespace isthmus::torch_backend {
namespace {

// Tags of data are below this; close_connections() waits for a message with this one, which nobody sends.
constexpr int kAbortTag = 1 << 24;

class CompletedHandle final : public Handle {
 public:
  void wait(Stream /*stream*/) override {}
};

at::Tensor as_tensor(ConstBuffer buffer) {
  return at::from_blob(const_cast<void*>(buffer.data), {buffer.bytes()}, at::kByte);
}

// Gloo and c10 append places in their sources and stack traces to a message: the first line says it all.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::vector<int64_t> equal_offsets(int64_t num_elements, int parts) {
  std::vector<int64_t> offsets;
  for (int p = 0; p <= parts; ++p) {
    offsets.push_back(num_elements * p / parts);
  }
  return offsets;
}

Buffer chunk(Buffer data, const std::vector<int64_t>& offsets, int index) {
  return data.slice(offsets[index], offsets[index + 1] - offsets[index]);
}

}  // namespace

// Messages to and from peers that are under way together. All ranks of the tier construct exchanges in the same order,
// which pairs their messages by tag. A tag says what the message is, as well: where ranks disagree about that, nothing
// arrives and the deadline passes, whereas Gloo ends the process if it gets a message of another size.
class C10dTransport::Exchange final : public Handle {
 public:
  Exchange(C10dTransport& transport, const char* operation)
      : transport_(transport), operation_(operation), number_(transport.next_exchange_++) {}

  void receive(int peer, Buffer buffer) {
    post("receiving from", peer, buffer,
         [&](std::vector<at::Tensor>& tensors) { return transport_.backend_->recv(tensors, peer, tag(buffer)); });
  }

  void send(int peer, ConstBuffer buffer) {
    post("sending to", peer, buffer, [&](std::vector<at::Tensor>& tensors) {
      count(peer, buffer.bytes());
      return transport_.backend_->send(tensors, peer, tag(buffer));
    });
  }

  void wait(Stream /*stream*/ = {}) override {
    for (auto& message : messages_) {
      guard(message.what, message.peer, [&] {
        const bool arrived = message.work->wait(remaining());
        ISTHMUS_CHECK(TransportError, arrived, "aborted");
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

  template <typename Start>
  void post(const char* what, int peer, ConstBuffer buffer, Start start) {
    if (buffer.bytes() == 0) {
      return;
    }
    guard(what, peer, [&] {
      std::vector<at::Tensor> tensors{as_tensor(buffer)};
      messages_.push_back({what, peer, start(tensors)});
    });
  }

  int tag(ConstBuffer buffer) const {
    return static_cast<int>(StableHash().add(operation_).add(number_).add(buffer.bytes()).value() % kAbortTag);
  }

  void count(int peer, int64_t bytes) {
    const bool leaves_node = transport_.node_of_rank_[peer] != transport_.node_of_rank_[transport_.rank()];
    std::lock_guard lock(transport_.traffic_mutex_);
    transport_.traffic_.sent_bytes += bytes;
    transport_.traffic_.inter_node_sent_bytes += leaves_node ? bytes : 0;
  }

  std::chrono::milliseconds remaining() const {
    if (transport_.deadline_ == Clock::time_point::max()) {
      return kNoTimeout;  // the backend's own
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(transport_.deadline_ - Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }

  template <typename Action>
  void guard(const char* what, int peer, Action action) {
    const auto where = [&] {
      return detail::concatenate(transport_.tier_, " ", operation_, ", ", what, " rank ",
                                 transport_.global_ranks_[peer], ": ");
    };
    ISTHMUS_CHECK(TransportError, !transport_.aborted_, where(), "aborted");
    try {
      action();
    } catch (const c10::Error& error) {
      throw TransportError(where() + first_line(error.what_without_backtrace()));
    } catch (const std::exception& error) {
      throw TransportError(where() + first_line(error.what()));
    }
  }

  C10dTransport& transport_;
  const char* operation_;
  int64_t number_;
  std::vector<Message> messages_;
};

// Every part goes straight to its owner; wait() sums what arrived, in rank order.
class C10dTransport::DirectReduceScatter final : public Handle {
 public:
  DirectReduceScatter(C10dTransport& transport, ConstBuffer in, Buffer out)
      : transport_(transport), exchange_(transport, "reduce-scatter"), in_(in), out_(out) {
    const int64_t part_bytes = out.num_elements * element_bytes(in.dtype);
    received_ = transport.take_scratch(part_bytes * transport.size());
    for (int peer = 0; peer < transport.size(); ++peer) {
      if (peer != transport.rank()) {
        exchange_.receive(peer, Buffer(received()).part(peer, out.num_elements));
      }
    }
    for (int distance = 1; distance < transport.size(); ++distance) {
      const int peer = transport.neighbour(distance);
      exchange_.send(peer, in.part(peer, out.num_elements));
    }
  }

  void wait(Stream /*stream*/) override {
    exchange_.wait();
    for (int p = 0; p < transport_.size(); ++p) {
      const ConstBuffer source = p == transport_.rank() ? in_ : ConstBuffer(received());
      const ConstBuffer part = source.part(p, out_.num_elements);
      p == 0 ? convert(part, out_) : accumulate(part, out_);
    }
    transport_.give_scratch(std::move(received_));
  }

 private:
  Buffer received() { return {received_.data(), in_.num_elements, in_.dtype}; }

  C10dTransport& transport_;
  std::vector<std::byte> received_;  // outlives the exchange, whose messages write into it
  Exchange exchange_;
  ConstBuffer in_;
  Buffer out_;
};

C10dTransport::C10dTransport(std::string tier, c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> global_ranks,
                             std::vector<int> node_of_rank)
    : tier_(std::move(tier)),
      backend_(std::move(backend)),
      global_ranks_(std::move(global_ranks)),
      node_of_rank_(std::move(node_of_rank)) {
  ISTHMUS_CHECK(
      Error, static_cast<int>(global_ranks_.size()) == size() && static_cast<int>(node_of_rank_.size()) == size(),
      tier_, " tier of ", size(), " ranks got ", global_ranks_.size(), " ranks and ", node_of_rank_.size(), " nodes");
  const auto num_nodes = std::set<int>(node_of_rank_.begin(), node_of_rank_.end()).size();
  ring_ = num_nodes > 1 && num_nodes < node_of_rank_.size();
}

C10dTransport::~C10dTransport() = default;

HandlePtr C10dTransport::reduce_scatter(ConstBuffer in, Buffer out, Stream /*stream*/) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements * size() && out.dtype == accumulate_dtype(in.dtype), tier_,
                " reduce-scatter of ", in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements, " x ",
                to_string(out.dtype), " over ", size(), " ranks");
  if (!ring_) {
    return std::make_unique<DirectReduceScatter>(*this, in, out);
  }
  ring_reduce_scatter(in, out);
  return std::make_unique<CompletedHandle>();
}

HandlePtr C10dTransport::all_to_all(ConstBuffer in, Buffer out, Stream /*stream*/) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements && in.dtype == out.dtype && in.num_elements % size() == 0,
                tier_, " all-to-all of ", in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements,
                " x ", to_string(out.dtype), " over ", size(), " ranks");
  const int64_t part_elements = in.num_elements / size();
  auto exchange = std::make_unique<Exchange>(*this, "all-to-all");
  for (int distance = 1; distance < size(); ++distance) {
    exchange->receive(neighbour(-distance), out.part(neighbour(-distance), part_elements));
  }
  for (int distance = 1; distance < size(); ++distance) {
    exchange->send(neighbour(distance), in.part(neighbour(distance), part_elements));
  }
  return exchange;
}

HandlePtr C10dTransport::all_gather(ConstBuffer in, Buffer out, Stream /*stream*/) {
  ISTHMUS_CHECK(Error, in.num_elements * size() == out.num_elements && in.dtype == out.dtype, tier_, " all-gather of ",
                in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements, " x ", to_string(out.dtype),
                " over ", size(), " ranks");
  const Buffer own = out.part(rank(), in.num_elements);
  if (own.data != in.data && in.bytes() > 0) {
    std::memcpy(own.data, in.data, in.bytes());
  }
  if (ring_) {
    ring_gather("all-gather", out, equal_offsets(out.num_elements, size()));
    return std::make_unique<CompletedHandle>();
  }
  auto exchange = std::make_unique<Exchange>(*this, "all-gather");
  for (int distance = 1; distance < size(); ++distance) {
    exchange->receive(neighbour(-distance), out.part(neighbour(-distance), in.num_elements));
  }
  for (int distance = 1; distance < size(); ++distance) {
    exchange->send(neighbour(distance), in);
  }
  return exchange;
}

HandlePtr C10dTransport::all_reduce(Buffer data, ReduceOp op, Stream stream) {
  ISTHMUS_CHECK(Error, op == ReduceOp::kSum || data.dtype == DataType::kByte, tier_, " all-reduce: bitwise or of ",
                to_string(data.dtype));
  const DataType sum_dtype = data.dtype == DataType::kByte ? data.dtype : accumulate_dtype(data.dtype);
  if (sum_dtype != data.dtype) {
    auto scratch = take_scratch(data.num_elements * element_bytes(sum_dtype));
    const Buffer sum{scratch.data(), data.num_elements, sum_dtype};
    convert(data, sum);
    all_reduce(sum, op, stream)->wait(stream);
    convert(sum, data);
    give_scratch(std::move(scratch));
    return std::make_unique<CompletedHandle>();
  }
  const auto offsets = equal_offsets(data.num_elements, size());
  ring_reduce(data, offsets, op);
  ring_gather("all-reduce", data, offsets);
  return std::make_unique<CompletedHandle>();
}

// Chunk c starts at rank c + 1 and collects every rank's part on its way round to rank c.
void C10dTransport::ring_reduce_scatter(ConstBuffer in, Buffer out) {
  const int64_t part_elements = out.num_elements;
  auto sent = take_scratch(out.bytes());
  auto received = take_scratch(out.bytes());
  const auto part_buffer = [&](std::vector<std::byte>& memory) {
    return Buffer{memory.data(), part_elements, out.dtype};
  };
  convert(in.part(neighbour(-1), part_elements), part_buffer(sent));
  for (int step = 0; step + 1 < size(); ++step) {
    Exchange exchange(*this, "reduce-scatter");
    exchange.receive(neighbour(-1), part_buffer(received));
    exchange.send(neighbour(1), part_buffer(sent));
    exchange.wait();
    accumulate(in.part((neighbour(-2) - step + size()) % size(), part_elements), part_buffer(received));
    std::swap(sent, received);
  }
  convert(part_buffer(sent), out);
  give_scratch(std::move(sent));
  give_scratch(std::move(received));
}

// Leaves chunk rank() of `data` reduced; the other chunks hold partial sums.
void C10dTransport::ring_reduce(Buffer data, const std::vector<int64_t>& offsets, ReduceOp op) {
  const int64_t longest = (data.num_elements + size() - 1) / size();
  auto scratch = take_scratch(longest * element_bytes(data.dtype));
  for (int step = 0; step + 1 < size(); ++step) {
    const int out_chunk = (rank() - step - 1 + size()) % size();
    const int in_chunk = (rank() - step - 2 + 2 * size()) % size();
    const Buffer partial{scratch.data(), offsets[in_chunk + 1] - offsets[in_chunk], data.dtype};
    const Buffer own = chunk(data, offsets, in_chunk);
    Exchange exchange(*this, "all-reduce");
    exchange.receive(neighbour(-1), partial);
    exchange.send(neighbour(1), chunk(data, offsets, out_chunk));
    exchange.wait();
    combine(partial, op, own);
  }
  give_scratch(std::move(scratch));
}

// Every rank starts with chunk rank() of `data` and ends with all.
void C10dTransport::ring_gather(const char* operation, Buffer data, const std::vector<int64_t>& offsets) {
  for (int step = 0; step + 1 < size(); ++step) {
    const int out_chunk = (rank() - step + size()) % size();
    const int in_chunk = (rank() - step - 1 + size()) % size();
    Exchange exchange(*this, operation);
    exchange.receive(neighbour(-1), chunk(data, offsets, in_chunk));
    exchange.send(neighbour(1), chunk(data, offsets, out_chunk));
    exchange.wait();
  }
}

Traffic C10dTransport::traffic() const {
  std::lock_guard lock(traffic_mutex_);
  return traffic_;
}

void C10dTransport::abort() {
  if (aborted_.exchange(true) || size() < 2) {
    return;
  }
  close_connections(*backend_);
}

std::vector<std::byte> C10dTransport::take_scratch(int64_t bytes) {
  std::vector<std::byte> scratch;
  if (!free_scratch_.empty()) {
    scratch = std::move(free_scratch_.back());
    free_scratch_.pop_back();
  }
  if (const auto held = static_cast<int64_t>(scratch.size()); held < bytes) {
    scratch.resize(bytes);
    scratch_bytes_ += bytes - held;
  }
  return scratch;
}

void C10dTransport::give_scratch(std::vector<std::byte> scratch) { free_scratch_.push_back(std::move(scratch)); }

void close_connections(c10d::Backend& backend) {
  try {
    backend.abort();  // nothing on Gloo
    std::vector<at::Tensor> tensors{at::empty({1}, at::kByte)};
    backend.recv(tensors, (backend.getRank() + 1) % backend.getSize(), kAbortTag)->wait(std::chrono::milliseconds(1));
  } catch (const std::exception&) {
    // The timeout is the point: Gloo then closes every connection of this rank's backend.
  }
}

}  // namespace isthmus::torch_backend
