#include "transport/message_transport.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "base/rounding.h"
#include "isthmus/error.h"
#include "transport/on_host.h"

namespace isthmus {
namespace {

// Chunk p holds the elements from offsets[p] up to offsets[p + 1].
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

// sum = the parts of all ranks in rank order, in sum's type. part_of(rank) returns a rank's part.
template <typename PartOf>
void sum_in_rank_order(int size, ReduceOp op, Buffer sum, const PartOf& part_of) {
  convert(part_of(0), sum);
  for (int rank = 1; rank < size; ++rank) {
    combine(part_of(rank), op, sum);
  }
}

}  // namespace

const char* to_string(Operation operation) {
  switch (operation) {
    case Operation::kReduceScatter:
      return "reduce-scatter";
    case Operation::kAllToAll:
      return "all-to-all";
    case Operation::kAllGather:
      return "all-gather";
    case Operation::kAllReduce:
      return "all-reduce";
  }
  return "unknown";
}

void MessageTransport::Exchange::receive(int peer, Buffer buffer) {
  if (buffer.bytes() > 0) {
    post_receive(peer, buffer);
  }
}

void MessageTransport::Exchange::send(int peer, ConstBuffer buffer) {
  if (buffer.bytes() > 0) {
    transport_.count_sent(peer, buffer.bytes());
    post_send(peer, buffer);
  }
}

// Exchanges one part with each other rank, in rounds: in round d every rank sends to the d-th rank after it and
// receives from the d-th before it. wait() starts all rounds but the first.
class MessageTransport::DirectExchange final : public Handle {
 public:
  // part_to(peer): what goes to that rank. part_from(peer): where that rank's part is written.
  DirectExchange(MessageTransport& transport, Operation operation, std::function<ConstBuffer(int)> part_to,
                 std::function<Buffer(int)> part_from)
      : transport_(transport), operation_(operation), part_to_(std::move(part_to)), part_from_(std::move(part_from)) {
    start_next_rounds();
  }

  void wait(Stream stream) override {
    while (exchange_ != nullptr) {
      exchange_->wait(stream);
      start_next_rounds();
    }
  }

 private:
  void start_next_rounds() {
    const int begin = next_round_;
    const int end = transport_.spans_nodes_ ? std::min(begin + 1, transport_.size()) : transport_.size();
    exchange_ = begin < end ? transport_.start_exchange(operation_) : nullptr;
    for (int distance = begin; distance < end; ++distance) {
      const int source = transport_.neighbour(-distance);
      exchange_->receive(source, part_from_(source));
    }
    for (int distance = begin; distance < end; ++distance) {
      const int target = transport_.neighbour(distance);
      exchange_->send(target, part_to_(target));
    }
    next_round_ = end;
  }

  MessageTransport& transport_;
  const Operation operation_;
  const std::function<ConstBuffer(int)> part_to_;
  const std::function<Buffer(int)> part_from_;
  int next_round_ = 1;  // also how far away this round's peers are
  std::unique_ptr<Exchange> exchange_;
};

// Sends each part straight to its owner; wait() sums the parts that arrived.
class MessageTransport::DirectReduceScatter final : public Handle {
 public:
  DirectReduceScatter(MessageTransport& transport, ConstBuffer in, Buffer out)
      : transport_(transport),
        received_(transport.take_scratch(in.bytes())),
        in_(in),
        out_(out),
        exchange_(
            transport, Operation::kReduceScatter, [this](int peer) { return in_.part(peer, out_.num_elements); },
            [this](int peer) { return received().part(peer, out_.num_elements); }) {}

  void wait(Stream stream) override {
    exchange_.wait(stream);
    sum_in_rank_order(transport_.size(), ReduceOp::kSum, out_, [&](int rank) {
      return (rank == transport_.rank() ? in_ : ConstBuffer(received())).part(rank, out_.num_elements);
    });
    transport_.give_scratch(std::move(received_));
  }

 private:
  Buffer received() { return {received_.data(), in_.num_elements, in_.dtype}; }

  MessageTransport& transport_;
  std::vector<std::byte> received_;  // outlives the exchange, whose messages are written into it
  const ConstBuffer in_;
  const Buffer out_;
  DirectExchange exchange_;
};

MessageTransport::MessageTransport(std::string tier, int rank, std::vector<int> global_ranks,
                                   const std::vector<int>& node_of_rank)
    : tier_(std::move(tier)),
      rank_(rank),
      global_ranks_(std::move(global_ranks)),
      node_of_rank_(node_of_rank),
      ring_(has_links_of_both_kinds(node_of_rank)),
      spans_nodes_(count_nodes(node_of_rank) > 1) {
  ISTHMUS_CHECK(Error, rank >= 0 && rank < size() && node_of_rank.size() == global_ranks_.size(), tier_, " tier: rank ",
                rank, " of ", size(), " ranks on ", node_of_rank.size(), " nodes");
}

HandlePtr MessageTransport::reduce_scatter(ConstBuffer in, Buffer out, Stream /*stream*/) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements * size() && out.dtype == accumulate_dtype(in.dtype), tier_,
                " reduce-scatter of ", in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements, " x ",
                to_string(out.dtype), " over ", size(), " ranks");
  if (!ring_) {
    return std::make_unique<DirectReduceScatter>(*this, in, out);
  }
  ring_reduce_scatter(in, out);
  return std::make_unique<CompletedHandle>();
}

HandlePtr MessageTransport::all_to_all(ConstBuffer in, Buffer out, Stream /*stream*/) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements && in.dtype == out.dtype && in.num_elements % size() == 0,
                tier_, " all-to-all of ", in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements,
                " x ", to_string(out.dtype), " over ", size(), " ranks");
  const int64_t part_elements = in.num_elements / size();
  return std::make_unique<DirectExchange>(
      *this, Operation::kAllToAll, [=](int peer) { return in.part(peer, part_elements); },
      [=](int peer) { return out.part(peer, part_elements); });
}

HandlePtr MessageTransport::all_gather(ConstBuffer in, Buffer out, Stream /*stream*/) {
  ISTHMUS_CHECK(Error, in.num_elements * size() == out.num_elements && in.dtype == out.dtype, tier_, " all-gather of ",
                in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements, " x ", to_string(out.dtype),
                " over ", size(), " ranks");
  const Buffer own = out.part(rank(), in.num_elements);
  if (own.data != in.data && in.bytes() > 0) {
    std::memcpy(own.data, in.data, static_cast<size_t>(in.bytes()));
  }
  if (spans_nodes_) {
    ring_gather(Operation::kAllGather, out, equal_offsets(out.num_elements, size()));
    return std::make_unique<CompletedHandle>();
  }
  return std::make_unique<DirectExchange>(
      *this, Operation::kAllGather, [=](int /*peer*/) { return in; },
      [=](int peer) { return out.part(peer, in.num_elements); });
}

HandlePtr MessageTransport::all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream /*stream*/) {
  ISTHMUS_CHECK(Error, out.size() == global_ranks_.size(), tier_, " uneven all-gather into ", out.size(),
                " buffers over ", size(), " ranks");
  return std::make_unique<DirectExchange>(
      *this, Operation::kAllGather, [=](int /*peer*/) { return in; }, [=](int peer) { return out[peer]; });
}

HandlePtr MessageTransport::all_reduce(Buffer data, ReduceOp op, Stream /*stream*/) {
  ISTHMUS_CHECK(Error, op == ReduceOp::kSum || data.dtype == DataType::kByte, tier_, " all-reduce: bitwise or of ",
                to_string(data.dtype));
  ring_ ? ring_all_reduce(data, op) : direct_all_reduce(data, op);
  return std::make_unique<CompletedHandle>();
}

// Chunk c goes to rank c, which sums it and sends the sum to all.
void MessageTransport::direct_all_reduce(Buffer data, ReduceOp op) {
  const auto offsets = equal_offsets(data.num_elements, size());
  const Buffer own = chunk(data, offsets, rank());
  const DataType sum_dtype = accumulate_dtype(data.dtype);
  auto sum_memory = take_scratch(own.num_elements * element_bytes(sum_dtype));
  auto received_memory = take_scratch(size() * own.bytes());
  const Buffer sum{sum_memory.data(), own.num_elements, sum_dtype};
  const Buffer received{received_memory.data(), size() * own.num_elements, data.dtype};

  DirectExchange(
      *this, Operation::kAllReduce, [&](int peer) { return chunk(data, offsets, peer); },
      [&](int peer) { return received.part(peer, own.num_elements); })
      .wait({});
  sum_in_rank_order(size(), op, sum, [&](int peer) {
    return ConstBuffer(peer == rank() ? own : received.part(peer, own.num_elements));
  });
  convert(sum, own);
  give_scratch(std::move(received_memory));
  give_scratch(std::move(sum_memory));

  DirectExchange(
      *this, Operation::kAllReduce, [&](int /*peer*/) { return own; },
      [&](int peer) { return chunk(data, offsets, peer); })
      .wait({});
}

void MessageTransport::ring_all_reduce(Buffer data, ReduceOp op) {
  const DataType sum_dtype = accumulate_dtype(data.dtype);
  if (sum_dtype != data.dtype) {
    auto scratch = take_scratch(data.num_elements * element_bytes(sum_dtype));
    const Buffer sum{scratch.data(), data.num_elements, sum_dtype};
    convert(data, sum);
    ring_all_reduce(sum, op);
    convert(sum, data);
    give_scratch(std::move(scratch));
    return;
  }
  const auto offsets = equal_offsets(data.num_elements, size());
  ring_reduce(data, offsets, op);
  ring_gather(Operation::kAllReduce, data, offsets);
}

// Chunk c starts at rank c + 1 and collects every rank's part on its way round to rank c.
void MessageTransport::ring_reduce_scatter(ConstBuffer in, Buffer out) {
  const int64_t part_elements = out.num_elements;
  auto sent = take_scratch(out.bytes());
  auto received = take_scratch(out.bytes());
  const auto part_buffer = [&](std::vector<std::byte>& memory) {
    return Buffer{memory.data(), part_elements, out.dtype};
  };
  convert(in.part(neighbour(-1), part_elements), part_buffer(sent));
  for (int step = 0; step + 1 < size(); ++step) {
    const auto exchange = start_exchange(Operation::kReduceScatter);
    exchange->receive(neighbour(-1), part_buffer(received));
    exchange->send(neighbour(1), part_buffer(sent));
    exchange->wait();
    accumulate(in.part((neighbour(-2) - step + size()) % size(), part_elements), part_buffer(received));
    std::swap(sent, received);
  }
  convert(part_buffer(sent), out);
  give_scratch(std::move(sent));
  give_scratch(std::move(received));
}

// Leaves chunk rank() of `data` reduced; the other chunks hold partial sums.
void MessageTransport::ring_reduce(Buffer data, const std::vector<int64_t>& offsets, ReduceOp op) {
  const int64_t longest = divide_up(data.num_elements, size());
  auto scratch = take_scratch(longest * element_bytes(data.dtype));
  for (int step = 0; step + 1 < size(); ++step) {
    const int out_chunk = (rank() - step - 1 + size()) % size();
    const int in_chunk = (rank() - step - 2 + 2 * size()) % size();
    const Buffer partial{scratch.data(), offsets[in_chunk + 1] - offsets[in_chunk], data.dtype};
    const Buffer own = chunk(data, offsets, in_chunk);
    const auto exchange = start_exchange(Operation::kAllReduce);
    exchange->receive(neighbour(-1), partial);
    exchange->send(neighbour(1), chunk(data, offsets, out_chunk));
    exchange->wait();
    combine(partial, op, own);
  }
  give_scratch(std::move(scratch));
}

// Every rank starts with chunk rank() of `data` and ends with all.
void MessageTransport::ring_gather(Operation operation, Buffer data, const std::vector<int64_t>& offsets) {
  for (int step = 0; step + 1 < size(); ++step) {
    const int out_chunk = (rank() - step + size()) % size();
    const int in_chunk = (rank() - step - 1 + size()) % size();
    const auto exchange = start_exchange(operation);
    exchange->receive(neighbour(-1), chunk(data, offsets, in_chunk));
    exchange->send(neighbour(1), chunk(data, offsets, out_chunk));
    exchange->wait();
  }
}

Traffic MessageTransport::traffic() const {
  const std::lock_guard lock(traffic_mutex_);
  return traffic_;
}

void MessageTransport::count_sent(int peer, int64_t bytes) {
  const std::lock_guard lock(traffic_mutex_);
  traffic_.sent_bytes += bytes;
  traffic_.inter_node_sent_bytes += node_of_rank_[peer] != node_of_rank_[rank()] ? bytes : 0;
}

std::vector<std::byte> MessageTransport::take_scratch(int64_t bytes) {
  std::vector<std::byte> scratch;
  if (!free_scratch_.empty()) {
    scratch = std::move(free_scratch_.back());
    free_scratch_.pop_back();
  }
  if (const auto held = static_cast<int64_t>(scratch.size()); held < bytes) {
    scratch.resize(static_cast<size_t>(bytes));
    scratch_bytes_ += bytes - held;
  }
  return scratch;
}

void MessageTransport::give_scratch(std::vector<std::byte> scratch) { free_scratch_.push_back(std::move(scratch)); }

}  // namespace isthmus
