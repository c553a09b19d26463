// A tier over an NCCL communicator. See isthmus/nccl.h for its guarantees.
#pragma once

#include <nccl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "isthmus/nccl.h"
#include "isthmus/transport.h"

namespace isthmus {

class NcclTransport final : public Transport {
 public:
  // Makes the tier `name` of global_ranks, in which this rank is the rank-th. node_of_rank[p]: the node of tier rank p.
  // All of them call it with the same id and max_ctas.
  static std::shared_ptr<NcclTransport> create(const std::string& name, int rank, const std::vector<int>& global_ranks,
                                               const std::vector<int>& node_of_rank, int ordinal, int max_ctas,
                                               const ncclUniqueId& id, std::chrono::milliseconds timeout);
  ~NcclTransport() override;  // NOLINT(bugprone-exception-escape): see there
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(node_of_rank_.size()); }
  SumType sum_type(DataType in) const override;

  void begin_group() override;
  void end_group() override;  // does nothing if an operation in the group threw
  void throw_if_failed() override;

  HandlePtr reduce_scatter(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_to_all(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream stream) override;
  HandlePtr all_reduce(Buffer data, ReduceOp op, Stream stream) override;

  Traffic traffic() const override;
  void abort() override;

 private:
  // Owns `comm`.
  NcclTransport(std::string who, int rank, const std::vector<int>& node_of_rank, int ordinal, ncclComm_t comm);

  // Calls NCCL with the device current, unless the tier has failed.
  template <typename Call>
  HandlePtr enqueue(Stream stream, const Call& call);
  void check(ncclResult_t result, const char* call);
  void check_open();
  void start_group();
  void finish_group();
  // NCCL's groups belong to the thread: while one is open, the thread's other tiers wait for its end.
  void close_groups();
  // Counts what goes to each other rank: bytes_to(peer) bytes.
  template <typename BytesTo>
  void count_sent(const BytesTo& bytes_to);

  const std::string who_;  // "intra tier, rank 3"
  const int rank_;
  const std::vector<int> node_of_rank_;
  const int ordinal_;
  const ncclComm_t comm_;
  ncclRedOp_t scaled_sum_ = ncclSum;  // for float16
  int group_depth_ = 0;

  // Held during NCCL calls, and from a group's beginning to its end. abort() waits for it only for a limited time,
  // since it may have to end those calls.
  std::recursive_timed_mutex in_call_;
  std::unique_lock<std::recursive_timed_mutex> in_group_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex traffic_mutex_;
  Traffic traffic_;
};

}  // namespace isthmus
