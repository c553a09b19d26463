#include "tests/cpp/support/in_process.h"

#include <algorithm>
#include <condition_variable>
#include <optional>
#include <string_view>

#include "isthmus/error.h"
#include "transport/on_host.h"

namespace isthmus {
namespace {

// The operation and buffers that one rank posts at a rendezvous.
struct Operation {
  std::string_view call;  // "reduce_scatter"
  ConstBuffer in;
  bool any_size = false;  // whether ranks may have inputs of different sizes

  std::string description() const {
    return detail::concatenate(call, " of ", in.num_elements, " elements of ", to_string(in.dtype));
  }
  bool matches(const Operation& other) const {
    const bool same_size = any_size || in.num_elements == other.in.num_elements;
    return call == other.call && same_size && in.dtype == other.in.dtype;
  }
};

}  // namespace

// The ranks of one tier. An operation passes two gates. At the first all ranks post their buffers; then each reads the
// others' inputs; after the second all inputs are free again. A failure closes the first gate for good. The second
// stays open, because peers still read from a rank that passed the first, and only they delay it.
class InProcessHub::Group {
 public:
  Group(std::string name, std::vector<int> ranks, std::vector<int> nodes, std::chrono::milliseconds timeout)
      : name_(std::move(name)),
        ranks_(std::move(ranks)),
        nodes_(std::move(nodes)),
        timeout_(timeout),
        ring_(has_links_of_both_kinds(nodes_)),
        operations_(ranks_.size()) {}

  int size() const { return static_cast<int>(ranks_.size()); }
  int node(int index) const { return nodes_[index]; }
  const std::vector<int>& ranks() const { return ranks_; }
  // Whether collectives run around the ring.
  bool ring() const { return ring_; }

  // Runs `compute(inputs of all ranks)` while no rank changes its input.
  template <typename Compute>
  void meet(int index, const Operation& operation, const Compute& compute) {
    enter(index, operation);
    try {
      compute(inputs_);
    } catch (...) {
      leave();
      throw;
    }
    leave();
  }

  void abort(int index) {
    const std::lock_guard lock(mutex_);
    close(detail::concatenate("tier ", name_, ": aborted by rank ", ranks_[index]));
  }

 private:
  void enter(int index, const Operation& operation) {
    std::unique_lock lock(mutex_);
    // A peer may still be in the previous operation.
    changed_.wait(lock, [this] { return computing_ == 0; });
    check_open();
    operations_[index] = operation;
    const uint64_t operation_number = operation_number_;
    if (std::all_of(operations_.begin(), operations_.end(), [](const auto& posted) { return posted.has_value(); })) {
      start();
    }
    const bool in_time =
        changed_.wait_for(lock, timeout_, [&] { return operation_number_ != operation_number || !failure_.empty(); });
    if (operation_number_ != operation_number) {
      return;
    }
    if (!in_time) {
      close(detail::concatenate("tier ", name_, ": ", operation.description(), " timed out after ", timeout_.count(),
                                " ms: rank ", missing_ranks(), " did not come"));
    }
    check_open();
  }

  // The last rank to arrive calls it: all ranks then compute, or none if their operations differ.
  void start() {
    for (int index = 1; index < size(); ++index) {
      if (!operations_[index]->matches(*operations_[0])) {
        close(detail::concatenate("tier ", name_, ": rank ", ranks_[0], " calls ", operations_[0]->description(),
                                  ", but rank ", ranks_[index], " calls ", operations_[index]->description()));
        return;
      }
    }
    inputs_.clear();
    for (std::optional<Operation>& posted : operations_) {
      inputs_.push_back(posted->in);
      posted.reset();
    }
    computing_ = size();
    ++operation_number_;
    changed_.notify_all();
  }

  void leave() {
    std::unique_lock lock(mutex_);
    const uint64_t operation_number = operation_number_;
    if (--computing_ == 0) {
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return computing_ == 0 || operation_number_ != operation_number; });
  }

  void close(const std::string& reason) {
    if (failure_.empty()) {
      failure_ = reason;
    }
    changed_.notify_all();
  }
  void check_open() const { ISTHMUS_CHECK(TransportError, failure_.empty(), failure_); }

  std::string missing_ranks() const {
    std::string text;
    for (int index = 0; index < size(); ++index) {
      if (!operations_[index].has_value()) {
        text += (text.empty() ? "" : ", ") + std::to_string(ranks_[index]);
      }
    }
    return text;
  }

  const std::string name_;
  const std::vector<int> ranks_;
  const std::vector<int> nodes_;
  const std::chrono::milliseconds timeout_;
  const bool ring_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<Operation>> operations_;  // posted by ranks at the first gate
  std::vector<ConstBuffer> inputs_;                   // of the running operation; the last rank to arrive writes them
  int computing_ = 0;                                 // how many ranks are between the gates
  uint64_t operation_number_ = 0;                     // how many operations have started
  std::string failure_;                               // why the group is closed; empty: it is open
};

class InProcessHub::Endpoint final : public Transport {
 public:
  Endpoint(std::shared_ptr<Group> group, int index) : group_(std::move(group)), index_(index) {}

  int rank() const override { return index_; }
  int size() const override { return group_->size(); }

  HandlePtr reduce_scatter(ConstBuffer in, Buffer out, Stream /*stream*/) override {
    const int64_t part_elements = out.num_elements;
    ISTHMUS_CHECK(Error, in.num_elements == part_elements * size(), "reduce_scatter: ", in.num_elements,
                  " elements are not ", size(), " parts of ", part_elements);
    group_->meet(index_, {"reduce_scatter", in}, [&](const std::vector<ConstBuffer>& inputs) {
      convert(inputs[0].part(index_, part_elements), out);
      for (int peer = 1; peer < size(); ++peer) {
        accumulate(inputs[peer].part(index_, part_elements), out);
      }
    });
    group_->ring() ? count_sent_around(out.bytes()) : count_sent_to_all(in.bytes() / size());
    return std::make_unique<CompletedHandle>();
  }

  HandlePtr compare_units(uint64_t hash, const std::string& unit) override {
    std::vector<uint64_t> hashes(static_cast<size_t>(size()));
    group_->meet(index_, {"units", {&hash, sizeof(hash), DataType::kByte}},
                 [&](const std::vector<ConstBuffer>& inputs) {
                   std::transform(inputs.begin(), inputs.end(), hashes.begin(),
                                  [](ConstBuffer input) { return *static_cast<const uint64_t*>(input.data); });
                 });
    require_equal_units(hash, unit, hashes, group_->ranks());
    return std::make_unique<CompletedHandle>();
  }

  HandlePtr all_to_all(ConstBuffer in, Buffer out, Stream /*stream*/) override {
    ISTHMUS_CHECK(Error, in.bytes() == out.bytes() && in.num_elements % size() == 0, "all_to_all: ", in.num_elements,
                  " elements into ", out.num_elements, " for ", size(), " ranks");
    const int64_t part_elements = in.num_elements / size();
    group_->meet(index_, {"all_to_all", in}, [&](const std::vector<ConstBuffer>& inputs) {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != index_) {
          convert(inputs[peer].part(index_, part_elements), out.part(peer, part_elements));
        }
      }
    });
    count_sent_to_all(in.bytes() / size());
    return std::make_unique<CompletedHandle>();
  }

  HandlePtr all_gather(ConstBuffer in, Buffer out, Stream /*stream*/) override {
    ISTHMUS_CHECK(Error, in.bytes() * size() == out.bytes(), "all_gather: ", out.num_elements, " elements are not ",
                  size(), " parts of ", in.num_elements);
    group_->meet(index_, {"all_gather", in}, [&](const std::vector<ConstBuffer>& inputs) {
      for (int peer = 0; peer < size(); ++peer) {
        convert(inputs[peer], out.part(peer, in.num_elements));
      }
    });
    group_->ring() ? count_sent_around(in.bytes()) : count_sent_to_all(in.bytes());
    return std::make_unique<CompletedHandle>();
  }

  HandlePtr all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream /*stream*/) override {
    ISTHMUS_CHECK(Error, static_cast<int>(out.size()) == size(), "all_gather_uneven: ", out.size(), " buffers for ",
                  size(), " ranks");
    group_->meet(index_, {.call = "all_gather_uneven", .in = in, .any_size = true},
                 [&](const std::vector<ConstBuffer>& inputs) {
                   for (int peer = 0; peer < size(); ++peer) {
                     ISTHMUS_CHECK(TransportError, peer == index_ || inputs[peer].bytes() == out[peer].bytes(),
                                   "all_gather_uneven: ", inputs[peer].bytes(), " bytes of rank ", peer, " into ",
                                   out[peer].bytes());
                     if (peer != index_) {
                       convert(inputs[peer], out[peer]);
                     }
                   }
                 });
    count_sent_to_all(in.bytes());
    return std::make_unique<CompletedHandle>();
  }

  HandlePtr pass_on(ConstBuffer in, Buffer out, Stream /*stream*/) override {
    ISTHMUS_CHECK(Error, in.bytes() == out.bytes(), "pass_on of ", in.bytes(), " bytes into ", out.bytes());
    group_->meet(index_, {"pass_on", in},
                 [&](const std::vector<ConstBuffer>& inputs) { convert(inputs[(index_ + size() - 1) % size()], out); });
    count_sent((index_ + 1) % size(), in.bytes());
    return std::make_unique<CompletedHandle>();
  }

  Traffic traffic() const override { return traffic_; }
  void abort() override { group_->abort(index_); }

 private:
  void count_sent(int peer, int64_t bytes) {
    traffic_.sent_bytes += bytes;
    traffic_.inter_node_sent_bytes += group_->node(peer) != group_->node(index_) ? bytes : 0;
  }
  void count_sent_around(int64_t bytes) { count_sent((index_ + 1) % size(), (size() - 1) * bytes); }
  void count_sent_to_all(int64_t bytes) {
    for (int peer = 0; peer < size(); ++peer) {
      count_sent(peer, peer == index_ ? 0 : bytes);
    }
  }

  const std::shared_ptr<Group> group_;
  const int index_;
  Traffic traffic_;
};

InProcessHub::InProcessHub(std::vector<int> node_of_rank, std::chrono::milliseconds timeout)
    : node_of_rank_(std::move(node_of_rank)), timeout_(timeout) {}

std::shared_ptr<Transport> InProcessHub::transport(const std::string& name, const std::vector<int>& ranks, int index) {
  ISTHMUS_CHECK(Error, index >= 0 && index < static_cast<int>(ranks.size()), "tier ", name, ": index ", index, " of ",
                ranks.size(), " ranks");
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Group>& group = groups_[{name, ranks}];
  if (group == nullptr) {
    std::vector<int> nodes;
    nodes.reserve(ranks.size());
    for (const int rank : ranks) {
      nodes.push_back(node_of_rank_.at(static_cast<size_t>(rank)));
    }
    group = std::make_shared<Group>(name, ranks, nodes, timeout_);
  }
  return std::make_shared<Endpoint>(group, index);
}

Tiers InProcessHub::tiers(const NodeMap& map, int rank) {
  const int node = map.node(rank);
  const int local_index = map.local_index(rank);
  return {transport("intra", map.node_ranks(node), local_index), transport("inter", map.rail_ranks(local_index), node),
          transport("flat", map.all_ranks(), rank)};
}

}  // namespace isthmus
