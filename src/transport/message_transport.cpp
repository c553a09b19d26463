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

// sum = the parts of all ranks in rank order, in sum's type. part_of(rank) returns a rank's part.
template <typename PartOf>
void sum_in_rank_order(int size, Buffer sum, const PartOf& part_of) {
  size > 1 ? add(part_of(0), part_of(1), sum) : convert(part_of(0), sum);
  for (int rank = 2; rank < size; ++rank) {
    accumulate(part_of(rank), sum);
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
    case Operation::kPassOn:
      return "pass-on";
  }
  return "unknown";
}

void MessageTransport::Exchange::receive(int peer, Buffer buffer) {
  if (buffer.bytes() > 0) {
    post(/*receives=*/true, peer, buffer);
  }
}

void MessageTransport::Exchange::send(int peer, ConstBuffer buffer, bool counts) {
  if (buffer.bytes() > 0) {
    transport_.count_sent(peer, counts ? buffer.bytes() : 0);
    post(/*receives=*/false, peer, {const_cast<void*>(buffer.data), buffer.num_elements, buffer.dtype});
  }
}

void MessageTransport::Exchange::count_wait(int peer, Clock::duration waited) {
  const std::lock_guard lock(transport_.traffic_mutex_);
  transport_.waits_[transport_.global_rank(peer)] += std::chrono::duration<double>(waited).count();
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

// Every rank starts with part rank() of `data` and ends with all. wait() starts all steps but the first.
class MessageTransport::RingGather final : public Handle {
 public:
  RingGather(MessageTransport& transport, Buffer data) : transport_(transport), data_(data) { start_next_step(); }

  void wait(Stream stream) override {
    while (exchange_ != nullptr) {
      exchange_->wait(stream);
      start_next_step();
    }
  }

 private:
  void start_next_step() {
    const int size = transport_.size();
    const int sent = (transport_.rank() - step_ + size) % size;
    exchange_ = ++step_ < size ? transport_.start_exchange(Operation::kAllGather) : nullptr;
    if (exchange_ != nullptr) {
      exchange_->receive(transport_.neighbour(-1), data_.part((sent - 1 + size) % size, data_.num_elements / size));
      exchange_->send(transport_.neighbour(1), data_.part(sent, data_.num_elements / size));
    }
  }

  MessageTransport& transport_;
  const Buffer data_;
  int step_ = 0;
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
    sum_in_rank_order(transport_.size(), out_, [&](int rank) {
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

// Sends this rank's hash to all others.
class MessageTransport::UnitComparison final : public Handle {
 public:
  UnitComparison(MessageTransport& transport, uint64_t hash, std::string unit)
      : transport_(transport),
        unit_(std::move(unit)),
        hash_(hash),
        hashes_(static_cast<size_t>(transport.size()), hash),
        exchange_(transport.start_exchange(Operation::kReduceScatter)) {
    for (int distance = 1; distance < transport.size(); ++distance) {
      const int peer = transport.neighbour(distance);
      exchange_->receive(peer, {&hashes_[static_cast<size_t>(peer)], sizeof(hash), DataType::kByte});
    }
    for (int distance = 1; distance < transport.size(); ++distance) {
      exchange_->send(transport.neighbour(distance), {&hash_, sizeof(hash), DataType::kByte}, /*counts=*/false);
    }
  }

  void wait(Stream stream) override {
    exchange_->wait(stream);
    require_equal_units(hash_, unit_, hashes_, transport_.global_ranks_);
  }

 private:
  MessageTransport& transport_;
  const std::string unit_;
  const uint64_t hash_;
  std::vector<uint64_t> hashes_;  // by rank
  const std::unique_ptr<Exchange> exchange_;
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
    return std::make_unique<RingGather>(*this, out);
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

HandlePtr MessageTransport::pass_on(ConstBuffer in, Buffer out, Stream /*stream*/) {
  ISTHMUS_CHECK(Error, in.bytes() == out.bytes(), tier_, " pass-on of ", in.bytes(), " bytes into ", out.bytes());
  auto exchange = start_exchange(Operation::kPassOn);
  exchange->receive(neighbour(-1), out);
  exchange->send(neighbour(1), in);
  return exchange;
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

HandlePtr MessageTransport::compare_units(uint64_t hash, const std::string& unit) {
  return std::make_unique<UnitComparison>(*this, hash, unit);
}

Traffic MessageTransport::traffic() const {
  const std::lock_guard lock(traffic_mutex_);
  return traffic_;
}

std::map<int, double> MessageTransport::take_waits() {
  const std::lock_guard lock(traffic_mutex_);
  return std::exchange(waits_, {});
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
