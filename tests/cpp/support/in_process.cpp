#include "tests/cpp/support/in_process.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>

#include "isthmus/error.h"
#include "transport/message_transport.h"

namespace isthmus::test {

// The ranks of one tier, and the messages that wait for their other end. Whoever posts the second end copies, while it
// holds the lock: a rank that gives up leaves nothing that others still use.
class InProcessHub::Group {
 public:
  Group(std::string name, std::vector<int> ranks, std::chrono::milliseconds timeout)
      : name_(std::move(name)), ranks_(std::move(ranks)), timeout_(timeout), num_begun_(ranks_.size()) {}

  const std::vector<int>& ranks() const { return ranks_; }

  // One rank's end of the messages of an exchange.
  struct End {
    End(int end_rank, Operation end_operation) : rank(end_rank), operation(end_operation) {}

    const int rank;
    const Operation operation;
    int64_t number = 0;
    int num_pending = 0;
    std::condition_variable done;
  };

  void begin(End& end) {
    const std::lock_guard lock(mutex_);
    check_open();
    end.number = ++num_begun_[static_cast<size_t>(end.rank)];
  }

  void post(End& end, int sender, int receiver, Buffer data) {
    const std::lock_guard lock(mutex_);
    check_open();
    auto& waiting = waiting_[{sender, receiver}];
    if (waiting.empty() || waiting.front().end->rank == end.rank) {
      waiting.push_back({&end, data});
      ++end.num_pending;
      return;
    }
    const Posted other = waiting.front();
    const Posted own{&end, data};
    const Posted& sent = end.rank == sender ? own : other;
    const Posted& expected = end.rank == sender ? other : own;
    if (sent.description() != expected.description()) {
      close(detail::concatenate("tier ", name_, ": rank ", ranks_[sender], " sends ", sent.description(), ", but rank ",
                                ranks_[receiver], " expects ", expected.description()));
      check_open();
    }
    std::memcpy(expected.data.data, sent.data.data, static_cast<size_t>(sent.data.bytes()));
    waiting.pop_front();
    if (--other.end->num_pending == 0) {
      other.end->done.notify_one();
    }
  }

  void wait(End& end) {
    std::unique_lock lock(mutex_);
    const bool in_time = end.done.wait_for(lock, timeout_, [&] { return end.num_pending == 0 || !failure_.empty(); });
    if (!in_time) {
      close(detail::concatenate("tier ", name_, ": ", to_string(end.operation), " timed out after ", timeout_.count(),
                                " ms: rank ", missing_ranks(end.number), " did not come"));
    }
    if (end.num_pending > 0) {
      check_open();
    }
  }

  // Called before `end` goes.
  void leave(End& end) {
    const std::lock_guard lock(mutex_);
    if (end.num_pending > 0) {
      close(
          detail::concatenate("tier ", name_, ": rank ", ranks_[end.rank], " gave up its ", to_string(end.operation)));
    }
  }

  void abort(int rank) {
    const std::lock_guard lock(mutex_);
    close(detail::concatenate("tier ", name_, ": aborted by rank ", ranks_[rank]));
  }

 private:
  struct Posted {
    End* end;
    Buffer data;

    std::string description() const {
      return detail::concatenate(to_string(end->operation), " of ", data.num_elements, " x ", to_string(data.dtype));
    }
  };

  void close(const std::string& reason) {
    failure_ = failure_.empty() ? reason : failure_;
    for (const auto& [between, waiting] : waiting_) {
      for (const Posted& posted : waiting) {
        posted.end->done.notify_one();
      }
    }
    waiting_.clear();
  }
  void check_open() const { ISTHMUS_CHECK(TransportError, failure_.empty(), failure_); }

  std::string missing_ranks(int64_t number) const {
    std::string text;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (num_begun_[rank] < number) {
        text += (text.empty() ? "" : ", ") + std::to_string(ranks_[rank]);
      }
    }
    return text;
  }

  const std::string name_;
  const std::vector<int> ranks_;
  const std::chrono::milliseconds timeout_;

  std::mutex mutex_;                                           // guards what follows, and all ends
  std::vector<int64_t> num_begun_;                             // exchanges, by rank
  std::map<std::pair<int, int>, std::deque<Posted>> waiting_;  // by sender and receiver; all of one of these
  std::string failure_;                                        // why the group is closed; empty: it is open
};

class InProcessHub::Endpoint final : public MessageTransport {
 public:
  Endpoint(const std::string& name, std::shared_ptr<Group> group, int index, const std::vector<int>& node_of_rank)
      : MessageTransport(name, index, group->ranks(), node_of_rank), group_(std::move(group)) {}

  void abort() override { group_->abort(rank()); }

 private:
  class Messages final : public Exchange {
   public:
    Messages(Endpoint& endpoint, Operation operation)
        : Exchange(endpoint, operation), group_(*endpoint.group_), end_(endpoint.rank(), operation) {
      group_.begin(end_);
    }
    ~Messages() override { group_.leave(end_); }
    Messages(const Messages&) = delete;
    Messages& operator=(const Messages&) = delete;

    void wait(Stream /*stream*/) override { group_.wait(end_); }

   private:
    void post_receive(int peer, Buffer buffer) override { group_.post(end_, peer, end_.rank, buffer); }
    void post_send(int peer, ConstBuffer buffer) override {
      group_.post(end_, end_.rank, peer, {const_cast<void*>(buffer.data), buffer.num_elements, buffer.dtype});
    }

    Group& group_;
    Group::End end_;
  };

  std::unique_ptr<Exchange> start_exchange(Operation operation) override {
    return std::make_unique<Messages>(*this, operation);
  }

  const std::shared_ptr<Group> group_;
};

InProcessHub::InProcessHub(std::vector<int> node_of_rank, std::chrono::milliseconds timeout)
    : node_of_rank_(std::move(node_of_rank)), timeout_(timeout) {}

std::shared_ptr<Transport> InProcessHub::transport(const std::string& name, const std::vector<int>& ranks, int index) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Group>& group = groups_[{name, ranks}];
  if (group == nullptr) {
    group = std::make_shared<Group>(name, ranks, timeout_);
  }
  std::vector<int> nodes;
  for (const int rank : ranks) {
    nodes.push_back(node_of_rank_.at(static_cast<size_t>(rank)));
  }
  return std::make_shared<Endpoint>(name, group, index, nodes);
}

Tiers InProcessHub::tiers(const NodeMap& map, int rank) {
  const int node = map.node(rank);
  const int local_index = map.local_index(rank);
  return {transport("intra", map.node_ranks(node), local_index), transport("inter", map.rail_ranks(local_index), node),
          transport("flat", map.all_ranks(), rank)};
}

}  // namespace isthmus::test
