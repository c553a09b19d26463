// A tier of emulated GPUs.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "isthmus/transport.h"
#include "tests/cpp/emulated/emulated_gpu.h"

namespace isthmus::test {

// Where the sum of a reduce-scatter is taken.
enum class Sums : uint8_t {
  kAccumulated,  // in the type that accumulates
  kLikeNccl,     // in the type of the summands, rounded after every addition; float16 divided first
};

// Enqueues each operation of `tier`, whose operations are done when they return, on the stream that it is given; there
// it blocks. Complains to its GPU when two operations of the tier are not ordered, and about groups that do not match.
// Between begin_group() and end_group() nothing is enqueued.
//
// An operation that fails leaves its output as it was, and the stream goes on; operations that are enqueued after it
// throw the error.
class EmulatedTransport final : public Transport {
 public:
  // between_nodes: whether its ranks sit on different nodes.
  EmulatedTransport(std::shared_ptr<EmulatedGpu> gpu, std::shared_ptr<Transport> tier, bool between_nodes, Sums sums);
  ~EmulatedTransport() override;

  int rank() const override { return tier_->rank(); }
  int size() const override { return tier_->size(); }
  SumType sum_type(DataType in) const override;
  void begin_group() override;
  void end_group() override;
  void throw_if_failed() override;
  std::chrono::milliseconds failure_delay() const override { return tier_->failure_delay(); }
  HandlePtr reduce_scatter(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_to_all(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather_uncounted(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream stream) override;
  HandlePtr pass_on(ConstBuffer in, Buffer out, Stream stream) override;
  Traffic traffic() const override { return traffic_; }
  void abort() override { tier_->abort(); }

  // For each group, how many operations were in it.
  const std::vector<int>& groups() const { return groups_; }

 private:
  struct Operation {
    Stream stream;
    std::string what;
    std::vector<MemoryUse> uses;
    EmulatedGpu::Work work;
  };

  using TierOperation = HandlePtr (Transport::*)(ConstBuffer in, Buffer out, Stream stream);

  HandlePtr start(Stream stream, const std::string& what, std::vector<MemoryUse> uses, EmulatedGpu::Work work);
  // Work that is an operation of the tier on what is behind two buffers.
  HandlePtr start(Stream stream, const std::string& what, std::vector<MemoryUse> uses, TierOperation operation,
                  ConstBuffer in, Buffer out);
  void enqueue(const Operation& operation);
  void run(const EmulatedGpu::Work& work);
  void sum_as_nccl(ConstBuffer in, Buffer out);
  void count_sent(int64_t bytes_to_each_peer);

  const std::shared_ptr<EmulatedGpu> gpu_;
  const std::shared_ptr<Transport> tier_;
  const bool between_nodes_;
  const Sums sums_;
  const DeviceMemory order_;  // that all operations use, so that they must be ordered
  Traffic traffic_;
  bool in_group_ = false;
  std::vector<Operation> group_;
  std::vector<int> groups_;

  std::mutex mutex_;  // guards what follows
  std::string failure_;
};

}  // namespace isthmus::test
