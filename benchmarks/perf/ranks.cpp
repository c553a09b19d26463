#include "perf/ranks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "transport/in_process.h"

namespace isthmus::perf {
namespace {

constexpr size_t kTextBytes = 256;

// Where the threads meet: one hub for each node map, which decides what counts as leaving a node.
class Hubs {
 public:
  explicit Hubs(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  InProcessHub& of(const NodeMap& map) {
    const std::lock_guard lock(mutex_);
    auto& hub = hubs_[map.node_of_rank()];
    if (hub == nullptr) {
      hub = std::make_unique<InProcessHub>(map, timeout_);
    }
    return *hub;
  }

 private:
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::map<std::vector<int>, std::unique_ptr<InProcessHub>> hubs_;
};

class ThreadRank final : public Rank {
 public:
  ThreadRank(int rank, int size, Hubs& hubs) : Rank(rank, size), hubs_(hubs) {}

  NodeMap default_nodes() override { return two_nodes(size()); }
  Tiers tiers(const NodeMap& map) override { return hubs_.of(map).tiers(map, rank()); }

 private:
  Hubs& hubs_;
};

// "model name : Intel(R) ..." of the first core.
std::string processor_name() {
  std::ifstream cores("/proc/cpuinfo");
  for (std::string line; std::getline(cores, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

}  // namespace

NodeMap two_nodes(int num_ranks) {
  std::vector<int> node_of_rank(static_cast<size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) {
    node_of_rank[rank] = num_ranks % 2 == 0 ? 2 * rank / num_ranks : 0;
  }
  return NodeMap(node_of_rank);
}

std::string Rank::device_model() { return processor_name(); }

void Rank::gather_bytes(const void* own, int64_t bytes, void* all) {
  if (everyone_ == nullptr) {
    everyone_ = tiers(NodeMap(std::vector<int>(static_cast<size_t>(size()), 0))).intra;
  }
  if (everyone_ == nullptr) {  // a tier of one rank
    std::memcpy(all, own, static_cast<size_t>(bytes));
    return;
  }
  const DeviceMemory memory = device_->allocate(bytes * size());
  const Buffer gathered{memory.get(), bytes * size(), DataType::kByte};
  const Buffer part = gathered.part(rank(), bytes);
  device_->write({own, bytes, DataType::kByte}, part);
  everyone_->all_gather(part, gathered, {})->wait();
  device_->read(gathered, {all, gathered.num_elements, DataType::kByte});
}

std::vector<double> Rank::gather(double value) {
  std::vector<double> values(static_cast<size_t>(size()));
  gather_bytes(&value, sizeof(value), values.data());
  return values;
}

std::vector<std::string> Rank::gather(const std::string& text) {
  using Text = std::array<char, kTextBytes>;
  Text own{};
  std::copy_n(text.begin(), std::min(text.size(), kTextBytes - 1), own.begin());
  std::vector<Text> all(static_cast<size_t>(size()));
  gather_bytes(own.data(), kTextBytes, all.data());
  std::vector<std::string> texts;
  for (const Text& one : all) {
    texts.emplace_back(one.data());
  }
  return texts;
}

void run_in_process(int num_ranks, std::chrono::milliseconds timeout, const RankBody& body) {
  Hubs hubs(timeout);
  std::mutex mutex;
  std::exception_ptr first_failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadRank self(rank, num_ranks, hubs);
        body(self);
      } catch (...) {
        const std::lock_guard lock(mutex);
        first_failure = first_failure ? first_failure : std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first_failure) {
    std::rethrow_exception(first_failure);
  }
}

}  // namespace isthmus::perf
