#include "transport/mpi.h"

#include <algorithm>
#include <limits>
#include <set>
#include <thread>
#include <utility>

#include "base/stable_hash.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

// The tag of the message by which a rank gives up; its data is the global rank that did so first, as an int. Messages
// with data have higher tags.
constexpr int kAbortTag = 0;
constexpr int kFirstDataTag = 1;
constexpr int kNumDataTypes = 5;
constexpr int kNumKinds = kNumOperations * kNumDataTypes;
constexpr int kLeastHighestTag = (1 << 15) - 1;  // which every MPI allows
constexpr int kExchangesUnderWay = 1024;         // at least so many exchanges have different tags
// How long messages that cannot be taken back may take to end after a failure.
constexpr std::chrono::seconds kRecallPatience(1);

std::atomic<bool> any_failed{false};

// A copy of `rank` at a lasting address: an abort message is sent from there and may outlive its tier.
const int* lasting(int rank) {
  static std::mutex mutex;
  static std::set<int> ranks;  // moves none of its elements
  const std::lock_guard lock(mutex);
  return &*ranks.insert(rank).first;
}

std::string list(const std::vector<int>& ranks) {
  std::string text = "rank ";
  for (const int rank : ranks) {
    text += (rank == ranks.front() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

// A pause between polls of messages. Ranks may outnumber cores, so the thread yields its core at once, and sleeps after
// a while.
class Pause {
 public:
  void take() {
    is_long() ? std::this_thread::sleep_for(kSleep) : std::this_thread::yield();
    ++num_polls_;
  }
  bool is_long() const { return num_polls_ >= kPollsBeforeSleep; }
  void begin_again() { num_polls_ = 0; }

 private:
  static constexpr int kPollsBeforeSleep = 2000;
  static constexpr std::chrono::microseconds kSleep{50};
  int num_polls_ = 0;
};

}  // namespace

// A tag says which exchange a message belongs to and what it is, so that messages of ranks whose operations or sizes
// differ do not match. When nothing arrives for a while, wait() looks for what a peer sent instead.
class MpiTransport::Messages final : public MessageTransport::Exchange {
 public:
  Messages(MpiTransport& transport, Operation operation)
      : Exchange(transport, operation),
        transport_(transport),
        number_(transport.next_exchange_++),
        limit_(transport.time_limit()),
        deadline_(Clock::now() + limit_) {
    const std::string reason = transport.why_closed();
    ISTHMUS_CHECK(TransportError, reason.empty(), where(), ": ", reason);
  }

  ~Messages() override {
    if (num_pending_ > 0) {
      transport_.close("an operation was given up before its end", transport_.global_rank(transport_.rank()));
      recall();
    }
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void wait(Stream /*stream*/) override {
    try {
      Pause pause;
      while (num_pending_ > 0) {
        if (take_completed()) {
          pause.begin_again();
          continue;
        }
        check_open();
        if (pause.is_long()) {
          check_peers_call_the_same();
        }
        ISTHMUS_CHECK(TransportError, Clock::now() < deadline_, "timed out after ", limit_.count(),
                      " ms: ", who_is_late());
        pause.take();
      }
      check_open();  // a sender that gave up may have changed what it was sending
    } catch (const TransportError& error) {
      const std::string text = where() + ": " + error.what();
      transport_.close("failed before: " + text, transport_.global_rank(transport_.rank()));
      recall();
      throw TransportError(text);
    }
  }

 private:
  struct Message {
    bool received;
    int peer;
    int bytes;
  };

  void check_open() const {
    const std::string reason = transport_.why_closed();
    ISTHMUS_CHECK(TransportError, reason.empty(), reason);
  }

  // Cuts the buffer into messages.
  void post(bool receives, int peer, Buffer buffer) override {
    const int tag = transport_.data_tag(number_, operation(), buffer);
    for (int64_t begin = 0; begin < buffer.bytes(); begin += transport_.limits_.max_message_bytes) {
      auto* const data = buffer.as<std::byte>() + begin;
      const auto bytes = static_cast<int>(std::min(buffer.bytes() - begin, transport_.limits_.max_message_bytes));
      MPI_Request request = MPI_REQUEST_NULL;
      receives ? check_mpi(MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, transport_.comm_, &request), "MPI_Irecv")
               : check_mpi(MPI_Isend(data, bytes, MPI_BYTE, peer, tag, transport_.comm_, &request), "MPI_Isend");
      messages_.push_back({receives, peer, bytes});
      requests_.push_back(request);
      ++num_pending_;
    }
  }

  // Returns whether a message completed. Throws if it failed.
  bool take_completed() {
    std::vector<int>& indices = completed_;
    indices.resize(requests_.size());
    statuses_.resize(requests_.size());
    int count = 0;
    const int code =
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices.data(), statuses_.data());
    ISTHMUS_CHECK(TransportError, code == MPI_SUCCESS || code == MPI_ERR_IN_STATUS, "MPI_Testsome: ", error_text(code));
    if (count == MPI_UNDEFINED) {
      num_pending_ = 0;
      return true;
    }
    num_pending_ -= count;
    for (int i = 0; i < count; ++i) {
      check_completed(messages_[indices[i]], statuses_[i], code == MPI_ERR_IN_STATUS);
    }
    return count > 0;
  }

  // Statuses have errors of their own only if MPI_Testsome reports one.
  void check_completed(const Message& message, const MPI_Status& status, bool has_error) const {
    const int peer = transport_.global_rank(message.peer);
    ISTHMUS_CHECK(TransportError, !has_error || status.MPI_ERROR == MPI_SUCCESS,
                  message.received ? "receiving from" : "sending to", " rank ", peer, ": ",
                  error_text(status.MPI_ERROR));
    if (message.received) {
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      ISTHMUS_CHECK(TransportError, bytes == message.bytes, "rank ", peer, " sends ", bytes, " bytes instead of ",
                    message.bytes, ": the ranks' sizes differ");
    }
  }

  // Stops these messages, as far as MPI can.
  void recall() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (messages_[i].received && requests_[i] != MPI_REQUEST_NULL) {
        MPI_Cancel(&requests_[i]);
      }
    }
    int all_done = 0;
    for (const auto end = Clock::now() + kRecallPatience; all_done == 0 && Clock::now() < end;) {
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all_done, MPI_STATUSES_IGNORE);
      std::this_thread::yield();
    }
    num_pending_ = 0;
  }

  std::string where() const { return transport_.tier() + ' ' + to_string(operation()); }

  std::string who_is_late() const {
    const std::vector<int> silent = pending_peers(true);
    return silent.empty() ? list(pending_peers(false)) + " did not take what was sent" : list(silent) + " did not come";
  }

  // Global ranks, ascending.
  std::vector<int> pending_peers(bool received) const {
    std::vector<int> peers;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL && messages_[i].received == received) {
        peers.push_back(transport_.global_rank(messages_[i].peer));
      }
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    return peers;
  }

  // Throws if a peer sent something else in this exchange.
  void check_peers_call_the_same() const {
    for (int peer = 0; peer < transport_.size(); ++peer) {
      int arrived = 0;
      MPI_Status status;
      check_mpi(MPI_Iprobe(peer, MPI_ANY_TAG, transport_.comm_, &arrived, &status), "MPI_Iprobe");
      if (arrived != 0 && status.MPI_TAG != kAbortTag && transport_.is_of_exchange(status.MPI_TAG, number_)) {
        int bytes = 0;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        throw TransportError(detail::concatenate("rank ", transport_.global_rank(peer), " calls ",
                                                 transport_.describe_tag(status.MPI_TAG), " and sends ", bytes,
                                                 " bytes, which fit nothing here"));
      }
    }
  }

  MpiTransport& transport_;
  const int64_t number_;
  const std::chrono::milliseconds limit_;
  const Clock::time_point deadline_;
  std::vector<Message> messages_;
  std::vector<MPI_Request> requests_;  // of these messages; MPI_REQUEST_NULL: done
  int64_t num_pending_ = 0;
  std::vector<int> completed_;  // memory for MPI_Testsome
  std::vector<MPI_Status> statuses_;
};

bool any_mpi_tier_failed() { return any_failed; }

std::shared_ptr<MpiTransport> MpiTransport::create(const std::string& name, MPI_Comm comm,
                                                   const std::vector<int>& ranks, const std::vector<int>& node_of_rank,
                                                   const MpiLimits& limits) {
  require_mpi();
  ISTHMUS_CHECK(Error, limits.timeout.count() > 0, name, " tier: a timeout of ", limits.timeout.count(), " ms");
  ISTHMUS_CHECK(Error, limits.max_message_bytes > 0 && limits.max_message_bytes <= std::numeric_limits<int>::max(),
                name, " tier: messages of at most ", limits.max_message_bytes, " bytes: expected 1 to 2^31 - 1");
  MPI_Group everyone = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(comm, &everyone), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(everyone, static_cast<int>(ranks.size()), ranks.data(), &members), "MPI_Group_incl");
  const int tag = static_cast<int>(StableHash().add(name).value() % (kLeastHighestTag + 1));
  MPI_Comm own = MPI_COMM_NULL;
  const int code = MPI_Comm_create_group(comm, members, tag, &own);
  MPI_Group_free(&members);
  MPI_Group_free(&everyone);
  check_mpi(code, "MPI_Comm_create_group");
  return std::shared_ptr<MpiTransport>(new MpiTransport(name, own, ranks, node_of_rank, limits));
}

MpiTransport::MpiTransport(const std::string& name, MPI_Comm comm, std::vector<int> global_ranks,
                           const std::vector<int>& node_of_rank, const MpiLimits& limits)
    : MessageTransport(name, rank_in(comm), std::move(global_ranks), node_of_rank), comm_(comm), limits_(limits) {
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int* highest_tag = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(comm, MPI_TAG_UB, static_cast<void*>(&highest_tag), &found), "MPI_Comm_get_attr");
  const int num_tags = (found != 0 ? *highest_tag : kLeastHighestTag) - kFirstDataTag;
  const int num_sizes = std::max(num_tags / (kNumKinds * kExchangesUnderWay), 1);
  num_size_tags_ = num_sizes - (num_sizes % 2 == 0 ? 1 : 0);
  num_exchange_tags_ = num_tags / (kNumKinds * num_size_tags_);
}

// A communicator with messages that nobody will receive is never freed, because the next one might get them.
MpiTransport::~MpiTransport() {
  if (!mpi_is_running()) {
    return;
  }
  try {
    if (why_closed().empty()) {
      MPI_Comm comm = comm_;
      MPI_Comm_free(&comm);
    }
  } catch (const TransportError&) {
    // MPI itself fails: there is nothing left to free.
  }
}

std::unique_ptr<MessageTransport::Exchange> MpiTransport::start_exchange(Operation operation) {
  return std::make_unique<Messages>(*this, operation);
}

int MpiTransport::data_tag(int64_t exchange_number, Operation operation, ConstBuffer buffer) const {
  const int kind = static_cast<int>(operation) * kNumDataTypes + static_cast<int>(buffer.dtype);
  const int size = static_cast<int>(buffer.bytes() % num_size_tags_);
  const int exchange = static_cast<int>(exchange_number % num_exchange_tags_);
  return kFirstDataTag + (exchange * kNumKinds + kind) * num_size_tags_ + size;
}

bool MpiTransport::is_of_exchange(int tag, int64_t exchange_number) const {
  return (tag - kFirstDataTag) / num_size_tags_ / kNumKinds == exchange_number % num_exchange_tags_;
}

std::string MpiTransport::describe_tag(int tag) const {
  const int kind = (tag - kFirstDataTag) / num_size_tags_ % kNumKinds;
  return detail::concatenate(to_string(static_cast<Operation>(kind / kNumDataTypes)), " of ",
                             to_string(static_cast<DataType>(kind % kNumDataTypes)));
}

void MpiTransport::abort() { close_as_aborted_by(global_rank(rank())); }

void MpiTransport::close_as_aborted_by(int culprit) {
  close(detail::concatenate("aborted by rank ", culprit), culprit);
}

void MpiTransport::close(const std::string& reason, int culprit) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return;
    }
    reason_ = reason;
    closed_ = true;
    any_failed = true;
  }
  if (!mpi_is_running()) {
    return;
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) {
      continue;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(lasting(culprit), 1, MPI_INT, peer, kAbortTag, comm_, &request) == MPI_SUCCESS) {
      MPI_Request_free(&request);
    }
  }
}

std::string MpiTransport::why_closed() {
  if (!closed_) {
    int arrived = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kAbortTag, comm_, &arrived, &message, MPI_STATUS_IGNORE), "MPI_Improbe");
    if (arrived == 0) {
      return "";
    }
    int culprit = -1;
    check_mpi(MPI_Mrecv(&culprit, 1, MPI_INT, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
    close_as_aborted_by(culprit);
  }
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::chrono::milliseconds MpiTransport::time_limit() const {
  if (deadline() == Clock::time_point::max()) {
    return limits_.timeout;
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline() - Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

}  // namespace isthmus
