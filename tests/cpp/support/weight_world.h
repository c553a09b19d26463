// A world whose ranks gather weights, on the CPU or on emulated GPUs: what is tested of both has one source.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "tests/cpp/support/gpu_world.h"
#include "tests/cpp/support/weights.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {

enum class Executor : uint8_t { kCpu, kGpu };

inline std::string name_of_executor(Executor executor) { return executor == Executor::kCpu ? "cpu" : "gpu"; }

class WeightWorld {
 public:
  WeightWorld(Executor executor, const NodeMap& node_map, const Options& options = delta_options(),
              const Wrap& wrap = {}) {
    if (executor == Executor::kCpu) {
      cpu_ = std::make_unique<World>(node_map, options, kTimeout, wrap);
    } else {
      gpu_ = std::make_unique<GpuWorld>(node_map, options, GpuSettings{.wrap = wrap});
    }
  }
  WeightWorld(Executor executor, const char* nodes, int world_size, const Options& options = delta_options(),
              const Wrap& wrap = {})
      : WeightWorld(executor, NodeMap::parse(nodes, world_size), options, wrap) {}

  // The tier that carries weights between nodes.
  static std::shared_ptr<Transport> Tiers::*tier_of(Executor executor) {
    return executor == Executor::kCpu ? &Tiers::inter : &Tiers::gather_inter;
  }

  const NodeMap& map() const { return cpu_ ? cpu_->map : gpu_->map; }
  int size() const { return map().world_size(); }
  KeyedCommunicator& communicator(int rank) { return cpu_ ? *cpu_->ranks[rank] : *gpu_->ranks[rank].communicator; }
  WeightStats stats(int rank) { return communicator(rank).stats().weights; }

  // One rank gathers its chunk of `whole`. Waits for the GPU, and throws what it found.
  Array gather(int rank, const Array& whole, const std::string& name = "unit") {
    const ConstBuffer values = whole.view();
    const ConstBuffer shard = values.part(rank, values.num_elements / size());
    Array gathered(values.num_elements, values.dtype);
    if (cpu_) {
      communicator(rank).gather_weights(shard, gathered.buffer(), key_of(name, values))->finish();
      return gathered;
    }
    const GpuWorld::Rank& here = gpu_->ranks[rank];
    const DeviceArray shard_there(*here.gpu, shard);
    const DeviceArray gathered_there(*here.gpu, values.num_elements, values.dtype);
    const WeightGatherPtr gather = here.communicator->gather_weights(shard_there.buffer(), gathered_there.buffer(),
                                                                     key_of(name, values), here.stream);
    here.gpu->wait(gather->finish(), here.stream);
    gathered = gathered_there.get();
    here.communicator->throw_if_faulted();
    return gathered;
  }

  // Every rank gathers, and has the bits of all chunks. Returns what each rank sent along its rail.
  std::vector<int64_t> gather(const Array& whole, const std::string& name = "unit") {
    std::vector<int64_t> sent(static_cast<size_t>(size()));
    run_ranks_well(size(), [&](int rank) {
      const auto sent_until_now = [&] {
        return communicator(rank).stats().collectives[static_cast<size_t>(Collective::kAllGather)].inter.sent_bytes;
      };
      const int64_t before = sent_until_now();
      EXPECT_TRUE(gather(rank, whole, name).bytes() == whole.bytes()) << "rank " << rank;
      sent[rank] = sent_until_now() - before;
    });
    return sent;
  }
  // The same, where bits and errors may be any.
  std::vector<Outcome> try_to_gather(const Array& whole) {
    return run_ranks(size(), [&](int rank) { gather(rank, whole); });
  }

 private:
  std::unique_ptr<World> cpu_;
  std::unique_ptr<GpuWorld> gpu_;
};

}  // namespace isthmus::test
