// Ranks that are processes with a GPU each, over NCCL.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "isthmus/cuda.h"
#include "isthmus/error.h"
#include "isthmus/nccl.h"
#include "perf/ranks.h"

namespace isthmus::perf {
namespace {

// A number that torchrun sets; `otherwise` where there is none.
int from_torchrun(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Rank 0 writes files, which the other ranks wait for: the path and a number each. Rank 0 removes them at its end, when
// all have read them.
class MeetingPlace {
 public:
  MeetingPlace(std::string path, int rank, std::chrono::milliseconds timeout)
      : path_(std::move(path)), rank_(rank), timeout_(timeout) {}
  ~MeetingPlace() {
    std::error_code ignored;
    for (int i = 0; i < num_written_; ++i) {
      std::filesystem::remove(file(i), ignored);
    }
  }
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;

  void broadcast(void* data, int64_t num_bytes) {
    const std::string path = file(next_++);
    rank_ == 0 ? write(path, data, num_bytes) : read(path, data, num_bytes);
  }

 private:
  std::string file(int number) const { return detail::concatenate(path_, ".", number); }

  // Nobody sees half a file.
  void write(const std::string& path, const void* data, int64_t num_bytes) {
    ISTHMUS_CHECK(OptionError, !std::filesystem::exists(path), "--id-file: there is ", path,
                  " already: of another run?");
    const std::string unfinished = path + ".unfinished";
    std::ofstream out(unfinished, std::ios::binary);
    out.write(static_cast<const char*>(data), num_bytes);
    out.close();
    ISTHMUS_CHECK(Error, !out.fail(), "cannot write ", unfinished);
    std::filesystem::rename(unfinished, path);
    ++num_written_;
  }

  void read(const std::string& path, void* data, int64_t num_bytes) const {
    constexpr std::chrono::milliseconds kPause(5);
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    while (!std::filesystem::exists(path)) {
      ISTHMUS_CHECK(TransportError, std::chrono::steady_clock::now() < deadline, "timed out after ", timeout_.count(),
                    " ms: rank 0 has not written ", path);
      std::this_thread::sleep_for(kPause);
    }
    std::ifstream in(path, std::ios::binary);
    in.read(static_cast<char*>(data), num_bytes);
    ISTHMUS_CHECK(Error, in.gcount() == num_bytes, path, " has ", in.gcount(), " bytes instead of ", num_bytes);
  }

  const std::string path_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
  int next_ = 0;
  int num_written_ = 0;
};

class GpuRank final : public Rank {
 public:
  GpuRank(const NcclProcess& process, int gpu, std::chrono::milliseconds timeout)
      : Rank(process.rank, process.num_ranks, make_cuda_device(gpu)),
        gpu_(gpu),
        timeout_(timeout),
        meeting_place_(process.id_file, process.rank, timeout) {}

  std::string device_model() override { return cuda_device_model(gpu_); }

  NodeMap default_nodes() override {
    const int ranks_per_node = from_torchrun("LOCAL_WORLD_SIZE", 0);
    if (ranks_per_node == 0 || size() % ranks_per_node != 0) {
      return two_nodes(size());
    }
    return NodeMap::parse(detail::concatenate(size() / ranks_per_node, "x", ranks_per_node), size());
  }

  Tiers tiers(const NodeMap& map) override {
    const auto broadcast = [this](void* data, int64_t num_bytes) { meeting_place_.broadcast(data, num_bytes); };
    return nccl_tiers(rank(), map, gpu_, broadcast, timeout_);
  }

 private:
  const int gpu_;
  const std::chrono::milliseconds timeout_;
  MeetingPlace meeting_place_;
};

}  // namespace

void run_over_nccl(const NcclProcess& given, std::chrono::milliseconds timeout, const RankBody& body) {
  NcclProcess process = given;
  process.num_ranks = given.num_ranks > 0 ? given.num_ranks : from_torchrun("WORLD_SIZE", 0);
  ISTHMUS_CHECK(OptionError, process.rank >= 0 && process.rank < process.num_ranks, "--transport nccl: --rank is ",
                process.rank, " and --ranks is ", process.num_ranks, ", expected a rank below their number");
  ISTHMUS_CHECK(OptionError, !process.id_file.empty(), "--transport nccl: --id-file is not given");
  const int num_gpus = num_cuda_devices();
  ISTHMUS_CHECK(OptionError, num_gpus > 0, "--transport nccl: there is no GPU");
  const int gpu = given.gpu >= 0 ? given.gpu : from_torchrun("LOCAL_RANK", process.rank) % num_gpus;
  ISTHMUS_CHECK(OptionError, gpu < num_gpus, "--gpu ", gpu, ": there are ", num_gpus);
  try {
    GpuRank self(process, gpu, timeout);
    body(self);
    self.barrier();  // before rank 0 removes what the others may still have to read
  } catch (const Error& error) {
    throw Error(detail::concatenate("rank ", process.rank, ": ", error.what()));
  }
}

std::string nccl_version_text() { return nccl_version(); }

}  // namespace isthmus::perf
