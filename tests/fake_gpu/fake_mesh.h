// Connections between the ranks of one communicator of the fake NCCL: Unix sockets, one for each pair.
#pragma once

#include <nccl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace isthmus::fake_gpu {

class NcclError : public std::runtime_error {
 public:
  NcclError(ncclResult_t result, const std::string& text) : std::runtime_error(text), result_(result) {}
  ncclResult_t result() const { return result_; }

 private:
  ncclResult_t result_;
};

// Goes before each message. Both ends must mean the same operation: all but `factor` is compared.
struct MessageHeader {
  std::array<char, 16> operation = {};
  uint64_t serial = 0;  // how many collectives came before; 0 for Send and Recv
  uint64_t count = 0;
  int32_t dtype = 0;
  int32_t reduction = 0;
  int32_t root = 0;
  double factor = 1;  // of the sender, for its summands

  bool operator==(const MessageHeader&) const = default;
  std::string text() const;
};

// Thread-safe: exchanges between one pair of ranks must not be concurrent, and abort() may come at any time.
class Mesh {
 public:
  // Meets the other ranks, which use the same name. Throws NcclError after the time that FAKE_NCCL_TIMEOUT_S gives.
  Mesh(const std::string& name, int rank, int size);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(sockets_.size()); }
  int socket(int peer) const { return sockets_[peer]; }

  // Ends what runs on this rank, and on the others once they wait for this one.
  void abort();
  bool aborted() const { return aborted_; }

 private:
  int rank_;
  std::vector<int> sockets_;  // of each peer; -1 for the own rank
  std::atomic<bool> aborted_ = false;
};

// One message to or from a peer.
struct Transfer {
  Mesh* mesh = nullptr;
  int peer = 0;
  bool sends = false;
  void* data = nullptr;
  size_t bytes = 0;
  MessageHeader header;  // what is sent; or what is expected, and then what came
  bool may_be_damaged = false;
};

// Moves all messages side by side; those of one pair in the order given. Throws NcclError: ncclRemoteError where a peer
// has gone, ncclSystemError after the timeout, ncclInternalError after abort(). Gives up where peers disagree.
void exchange(std::vector<Transfer>& transfers);

}  // namespace isthmus::fake_gpu
