#include "fake_mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "fake_runtime.h"

namespace isthmus::fake_gpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollMilliseconds = 20;  // how soon an abort is seen

// Transfers that may still pass before one is damaged; negative: none will be.
std::atomic<int64_t> transfers_until_damage = -1;

Clock::time_point deadline() {
  const char* seconds = std::getenv("FAKE_NCCL_TIMEOUT_S");
  return Clock::now() + std::chrono::milliseconds(seconds == nullptr ? 60'000 : std::atol(seconds) * 1000);
}

// An abstract address: nothing is left behind in a file system. With FAKE_NCCL_FOLDER one in that folder, which ranks
// in different network namespaces can reach, too.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name, int rank) {
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  const char* folder = std::getenv("FAKE_NCCL_FOLDER");
  const std::string begin = folder == nullptr ? std::string(1, '\0') + "isthmus-fake-nccl" : folder;
  const std::string path = begin + "/" + name + "." + std::to_string(rank);
  if (path.size() >= sizeof(address.sun_path)) {
    throw NcclError(ncclSystemError, "FAKE_NCCL_FOLDER is too long: " + path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size())};
}

int make_socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

// NCCL's error has a number alone, and torch's a line: what is waited for stands in the log of the process.
[[noreturn]] void time_out(const std::string& missing) {
  std::fprintf(stderr, "fake NCCL: process %d: timeout: %s\n", ::getpid(), missing.c_str());
  throw NcclError(ncclSystemError, "timeout: " + missing);
}

void wait_for(int socket, short events, Clock::time_point until, const char* what) {
  pollfd wanted = {socket, events, 0};
  while (::poll(&wanted, 1, kPollMilliseconds) <= 0) {  // a signal interrupts it, too
    if (Clock::now() > until) {
      time_out(what);
    }
  }
}

int connect_to(const std::string& name, int own_rank, int peer, Clock::time_point until) {
  const auto [address, bytes] = address_of(name, peer);
  while (true) {
    const int socket = make_socket();
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) {
      const int32_t rank = own_rank;
      if (::send(socket, &rank, sizeof(rank), MSG_NOSIGNAL) == sizeof(rank)) {
        return socket;
      }
    }
    ::close(socket);
    if (Clock::now() > until) {
      time_out("rank " + std::to_string(peer) + " did not come to make a communicator");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // it does not listen yet
  }
}

// One direction of one pair: its transfers in order, and how much of the first one has moved.
struct Channel {
  std::deque<Transfer*> transfers;
  size_t moved = 0;
  MessageHeader arriving;

  // Moves what it can without waiting. Returns false when there is nothing left.
  bool progress() {
    while (!transfers.empty()) {
      Transfer& transfer = *transfers.front();
      if (!move(transfer)) {
        return true;
      }
      if (moved == sizeof(MessageHeader) + transfer.bytes) {
        finish(transfer);
      }
    }
    return false;
  }

 private:
  // The rest of the header, or else of the data. Returns false where that would wait.
  bool move(Transfer& transfer) {
    const bool in_header = moved < sizeof(MessageHeader);
    auto* header = reinterpret_cast<std::byte*>(transfer.sends ? &transfer.header : &arriving);
    std::byte* at = in_header ? header + moved : static_cast<std::byte*>(transfer.data) + moved - sizeof(MessageHeader);
    const size_t bytes = in_header ? sizeof(MessageHeader) - moved : sizeof(MessageHeader) + transfer.bytes - moved;
    const int socket = transfer.mesh->socket(transfer.peer);
    const ssize_t result = transfer.sends ? ::send(socket, at, bytes, MSG_NOSIGNAL) : ::recv(socket, at, bytes, 0);
    if (result < 0 && (errno == EAGAIN || errno == EINTR)) {
      return false;
    }
    if (result <= 0) {
      throw NcclError(ncclRemoteError, "rank " + std::to_string(transfer.peer) + " has left the communicator");
    }
    moved += result;
    if (in_header && moved == sizeof(MessageHeader) && !transfer.sends) {
      check_header(transfer);
    }
    return true;
  }

  void check_header(Transfer& transfer) {
    MessageHeader expected = transfer.header;
    expected.factor = arriving.factor;
    if (expected != arriving) {
      give_up("NCCL: rank %d runs %s, but rank %d runs %s on the same communicator", transfer.mesh->rank(),
              expected.text().c_str(), transfer.peer, arriving.text().c_str());
    }
    transfer.header = arriving;
  }

  void finish(const Transfer& transfer) {
    if (!transfer.sends && transfer.may_be_damaged && transfer.bytes > 0 && transfers_until_damage >= 0 &&
        transfers_until_damage-- == 0) {
      static_cast<std::byte*>(transfer.data)[transfer.bytes / 2] ^= std::byte{0x10};
    }
    transfers.pop_front();
    moved = 0;
  }
};

using Channels = std::map<std::pair<int, bool>, Channel>;  // by socket and direction

bool progress(Channels& channels) {
  for (auto channel = channels.begin(); channel != channels.end();) {
    channel = channel->second.progress() ? std::next(channel) : channels.erase(channel);
  }
  return !channels.empty();
}

std::string text_of(const Channels& channels) {
  std::string text;
  for (const auto& [end, channel] : channels) {
    const Transfer& first = *channel.transfers.front();
    text += (text.empty() ? "" : "; ") + std::string(first.sends ? "to" : "from") + " rank " +
            std::to_string(first.peer) + ", of rank " + std::to_string(first.mesh->rank()) + ", " +
            std::to_string(channel.moved) + " bytes moved: " + first.header.text();
  }
  return text;
}

void poll_any(const Channels& channels) {
  std::vector<pollfd> wanted;
  for (const auto& [end, channel] : channels) {
    wanted.push_back({end.first, static_cast<short>(end.second ? POLLOUT : POLLIN), 0});
  }
  ::poll(wanted.data(), wanted.size(), kPollMilliseconds);
}

}  // namespace

std::string MessageHeader::text() const {
  return std::string(operation.data()) + " (number " + std::to_string(serial) + ", " + std::to_string(count) +
         " elements of type " + std::to_string(dtype) + ", reduction " + std::to_string(reduction) + ", root " +
         std::to_string(root) + ")";
}

Mesh::Mesh(const std::string& name, int rank, int size) : rank_(rank), sockets_(size, -1) {
  const Clock::time_point until = deadline();
  const int listener = make_socket();
  const auto [address, bytes] = address_of(name, rank);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), bytes) != 0 || ::listen(listener, size) != 0) {
    give_up("NCCL: rank %d cannot listen: %s; do two ranks have this number?", rank, std::strerror(errno));
  }
  for (int peer = 0; peer < rank; ++peer) {
    sockets_[peer] = connect_to(name, rank, peer, until);
  }
  for (int missing = size - 1 - rank; missing > 0; --missing) {
    wait_for(listener, POLLIN, until, "not all ranks came to make a communicator");
    const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int32_t peer = 0;
    wait_for(socket, POLLIN, until, "a rank that came does not say which");
    if (::recv(socket, &peer, sizeof(peer), 0) != sizeof(peer) || peer <= rank || peer >= size) {
      give_up("NCCL: rank %d was called by a process that is not of its communicator", rank);
    }
    sockets_[peer] = socket;
  }
  ::close(listener);
}

Mesh::~Mesh() {
  for (const int socket : sockets_) {
    if (socket >= 0) {
      ::close(socket);
    }
  }
}

void Mesh::abort() {
  aborted_ = true;
  for (const int socket : sockets_) {
    ::shutdown(socket, SHUT_RDWR);
  }
}

void exchange(std::vector<Transfer>& transfers) {
  Channels channels;
  for (Transfer& transfer : transfers) {
    channels[{transfer.mesh->socket(transfer.peer), transfer.sends}].transfers.push_back(&transfer);
  }
  const Clock::time_point until = deadline();
  const auto is_aborted = [](const Transfer& transfer) { return transfer.mesh->aborted(); };
  try {
    while (progress(channels)) {
      if (std::any_of(transfers.begin(), transfers.end(), is_aborted)) {
        throw NcclError(ncclInternalError, "the communicator was aborted");
      }
      if (Clock::now() > until) {
        time_out(text_of(channels));
      }
      poll_any(channels);
    }
  } catch (const NcclError&) {
    if (std::any_of(transfers.begin(), transfers.end(), is_aborted)) {
      throw NcclError(ncclInternalError, "the communicator was aborted");
    }
    throw;
  }
}

}  // namespace isthmus::fake_gpu

// For tests (ctypes): flips a bit of a message of AlltoAll or Recv that this process receives from another rank, after
// letting so many of them pass.
FAKE_API void fake_nccl_damage_after(int64_t transfers) { isthmus::fake_gpu::transfers_until_damage = transfers; }
