// The tiers of a rank over NCCL, and how their ranks find each other. See isthmus/nccl.h for their guarantees.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "isthmus/nccl.h"
#include "isthmus/node_map.h"
#include "isthmus/transport.h"

namespace isthmus {

// Returns the id of a tier's communicator, the same on all of its ranks and for no other tier. key: names the tier
// among all of the group. draws: this rank is the tier's first, and draws the id. Runs on a thread of its own, which is
// abandoned where it waits for too long: it owns what it refers to.
using NcclIdOf = std::function<ncclUniqueId(const std::string& key, bool draws)>;

// Draws an id. Throws TransportError.
ncclUniqueId draw_nccl_id();

// Which tier of a rank, and where.
struct NcclTierPlace {
  std::string name;  // "intra", "gather-inter"
  int rank = 0;      // in the tier
  std::vector<int> global_ranks;
  std::vector<int> node_of_rank;  // by rank in the tier
  int ordinal = 0;                // of the CUDA device
  int max_ctas = 0;
};

// How long NCCL may take to tell that a rank was lost, after kernels have ended that wait for it.
inline constexpr std::chrono::milliseconds kFailureDelay{2000};

// Connects at its first operation, or before by connect().
class NcclTransport final : public Transport {
 public:
  // All ranks of the tier call it with the same max_ctas and timeout. id: draws it or waits for it; see NcclIdOf.
  NcclTransport(NcclTierPlace place, std::function<ncclUniqueId()> id, std::chrono::milliseconds timeout);
  ~NcclTransport() override;  // NOLINT(bugprone-exception-escape): see there
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  // Makes the communicator, if there is none yet. Collective. Throws TransportError after the timeout and when another
  // thread aborts; the tier is of no use then.
  void connect();
  // Leaves the communicator to the end of the process: nothing calls NCCL for it any more, not even the destructor. No
  // operation may follow.
  void leave() { comm_ = nullptr; }

  int rank() const override { return place_.rank; }
  int size() const override { return static_cast<int>(place_.node_of_rank.size()); }
  SumType sum_type(DataType in) const override;

  void begin_group() override;
  void end_group() override;  // does nothing if an operation in the group threw
  void throw_if_failed() override;
  std::chrono::milliseconds failure_delay() const override { return kFailureDelay; }

  HandlePtr reduce_scatter(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_to_all(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather_uncounted(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream stream) override;
  HandlePtr pass_on(ConstBuffer in, Buffer out, Stream stream) override;

  Traffic traffic() const override;
  void abort() override;

 private:
  struct Creation;

  ncclComm_t wait_for(const std::shared_ptr<Creation>& creation) const;
  // Calls NCCL with the device current, unless the tier has failed.
  template <typename Call>
  HandlePtr enqueue(Stream stream, const Call& call);
  void check(ncclResult_t result, const char* call);
  void check_open();
  void start_group();
  void finish_group();
  // NCCL's groups belong to the thread: while one is open, the thread's other tiers wait for its end.
  void close_groups();
  // Sends part_to(peer) to each other rank, and receives part_from(peer); either may be empty.
  template <typename PartTo, typename PartFrom>
  HandlePtr exchange(Stream stream, const PartTo& part_to, const PartFrom& part_from);
  // Counts what goes to each other rank: bytes_to(peer) bytes.
  template <typename BytesTo>
  void count_sent(const BytesTo& bytes_to);
  void count_parts(int64_t part_bytes);
  int neighbour(int distance) const { return (rank() + distance + size()) % size(); }

  const NcclTierPlace place_;
  const std::string who_;  // "intra tier, rank 3"
  const std::function<ncclUniqueId()> id_;
  const std::chrono::milliseconds timeout_;
  std::atomic<ncclComm_t> comm_{nullptr};
  ncclRedOp_t scaled_sum_ = ncclSum;  // for float16
  int group_depth_ = 0;

  // Held while it connects, during NCCL calls, and from a group's beginning to its end. abort() waits for it only for a
  // limited time, since it may have to end those calls.
  std::recursive_timed_mutex in_call_;
  std::unique_lock<std::recursive_timed_mutex> in_group_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex traffic_mutex_;
  Traffic traffic_;
};

// The tiers of nccl_tiers(), NcclTransports each of which connects when it is first used, by itself. global_ranks: by
// rank of the map, for errors. timeout: for each tier to connect. with_flat: also a tier of all ranks.
Tiers nccl_tiers_when_used(int rank, const NodeMap& map, const std::vector<int>& global_ranks, int ordinal,
                           const NcclIdOf& id_of, std::chrono::milliseconds timeout, bool with_flat = false);

}  // namespace isthmus
