#include "torch/module/module_simulated.h"

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"
#include "torch/backend/options.h"
#include "transport/in_process.h"

namespace isthmus::torch_backend {
namespace {

using OptionsPtr = c10::intrusive_ptr<BackendOptions>;

// A rank that waits for others learns of their failure only through its transport: what they say comes first.
struct Failure {
  std::exception_ptr error;
  bool by_transport = false;
};

// Runs body(rank) for every rank on a thread of its own, and waits for all. Throws what the first of them threw that
// did not fail for the others' sake.
template <typename Body>
void run_ranks(int world_size, const Body& body) {
  std::vector<Failure> failures(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  threads.reserve(failures.size());
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&body, &failure = failures[rank], rank] {
      try {
        body(rank);
      } catch (const TransportError&) {
        failure = {std::current_exception(), true};
      } catch (...) {
        failure = {std::current_exception(), false};
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const bool by_transport : {false, true}) {
    for (const Failure& failure : failures) {
      if (failure.error != nullptr && failure.by_transport == by_transport) {
        std::rethrow_exception(failure.error);
      }
    }
  }
}

NodeMap block_map(int num_nodes, int ranks_per_node) {
  ISTHMUS_CHECK(OptionError, num_nodes >= 1 && num_nodes <= 64, "num_nodes=", num_nodes, ": expected 1 to 64");
  ISTHMUS_CHECK(OptionError, ranks_per_node >= 1 && ranks_per_node <= 64, "ranks_per_node=", ranks_per_node,
                ": expected 1 to 64");
  return NodeMap::parse(std::to_string(num_nodes) + "x" + std::to_string(ranks_per_node), num_nodes * ranks_per_node);
}

// The communicators of all ranks of a group, block placement, over in-process tiers. Methods are called from any
// thread, one at a time. After an exception that is not about arguments no more can be reduced.
class SimulatedNodes {
 public:
  // timeout: how long a rank waits for the others.
  SimulatedNodes(int num_nodes, int ranks_per_node, const Options& options, std::chrono::milliseconds timeout)
      : map_(block_map(num_nodes, ranks_per_node)), hub_(map_, timeout) {
    for (int rank = 0; rank < map_.world_size(); ++rank) {
      ranks_.push_back(std::make_unique<Communicator>(map_, rank, hub_.tiers(map_, rank), options));
    }
  }

  // scale * the sum of all ranks' gradients, through the options' codec with the residual of `unit`: every rank's
  // shard, end to end. gradients: one a rank, of equal length (a multiple of the ranks) and type (float32 or bfloat16);
  // the result is of that type.
  at::Tensor reduce(const std::string& unit, const std::vector<at::Tensor>& gradients, double scale) {
    const std::lock_guard lock(mutex_);
    check(gradients);
    const int64_t num_elements = gradients.front().numel();
    const DataType dtype = type_of(gradients.front());
    at::Tensor shards = at::empty_like(gradients.front());
    const Buffer out{shards.mutable_data_ptr(), num_elements, dtype};
    const int64_t shard_elements = num_elements / map_.world_size();
    const UnitKey key{unit, num_elements, dtype};
    run_ranks(map_.world_size(), [&](int rank) {
      const ConstBuffer gradient{gradients[rank].const_data_ptr(), num_elements, dtype};
      ranks_[rank]->reduce_scatter(gradient, out.part(rank, shard_elements), scale, key, nullptr);
    });
    return shards;
  }

  // What every rank has after an all-reduce of the same.
  at::Tensor all_reduce(const std::string& unit, const std::vector<at::Tensor>& gradients, double scale) {
    const std::lock_guard lock(mutex_);
    check(gradients);
    const UnitKey key{unit, gradients.front().numel(), type_of(gradients.front()), Collective::kAllReduce};
    std::vector<at::Tensor> reduced;
    reduced.reserve(gradients.size());
    for (const at::Tensor& gradient : gradients) {
      reduced.push_back(gradient.clone());
    }
    run_ranks(map_.world_size(), [&](int rank) {
      ranks_[rank]->all_reduce({reduced[rank].mutable_data_ptr(), key.num_elements, key.dtype}, scale, key, nullptr);
    });
    return reduced.front();
  }

  // Of each rank.
  std::vector<isthmus::Stats> stats() {
    const std::lock_guard lock(mutex_);
    std::vector<isthmus::Stats> all;
    all.reserve(ranks_.size());
    for (const auto& rank : ranks_) {
      all.push_back(rank->stats());
    }
    return all;
  }

  const NodeMap& map() const { return map_; }

 private:
  static DataType type_of(const at::Tensor& tensor) {  // that check() lets pass
    return tensor.scalar_type() == at::kFloat ? DataType::kFloat32 : DataType::kBFloat16;
  }

  void check(const std::vector<at::Tensor>& gradients) const {
    const auto world_size = static_cast<size_t>(map_.world_size());
    ISTHMUS_CHECK(Error, gradients.size() == world_size, "reduce: ", gradients.size(), " gradients for ", world_size,
                  " ranks");
    const at::Tensor& first = gradients.front();
    ISTHMUS_CHECK(Error, first.scalar_type() == at::kFloat || first.scalar_type() == at::kBFloat16,
                  "reduce: gradients of ", at::toString(first.scalar_type()), ": expected float32 or bfloat16");
    ISTHMUS_CHECK(Error, first.numel() % map_.world_size() == 0, "reduce: ", first.numel(),
                  " elements: expected a multiple of the ", world_size, " ranks");
    for (const at::Tensor& gradient : gradients) {
      ISTHMUS_CHECK(Error, gradient.is_cpu() && gradient.is_contiguous() && gradient.dim() == 1,
                    "reduce: expected contiguous tensors of one dimension, on the CPU");
      ISTHMUS_CHECK(Error, gradient.numel() == first.numel() && gradient.scalar_type() == first.scalar_type(),
                    "reduce: gradients differ: ", first.numel(), " elements of ", at::toString(first.scalar_type()),
                    ", and ", gradient.numel(), " of ", at::toString(gradient.scalar_type()));
    }
  }

  const NodeMap map_;
  InProcessHub hub_;
  std::mutex mutex_;  // guards ranks_
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

std::vector<py::dict> stats_of(SimulatedNodes& nodes) {
  std::vector<isthmus::Stats> all;
  {
    const py::gil_scoped_release unlocked;
    all = nodes.stats();
  }
  std::vector<py::dict> plain;
  plain.reserve(all.size());
  for (const isthmus::Stats& stats : all) {
    plain.push_back(torch_backend::to_dict(stats));
  }
  return plain;
}

}  // namespace

void bind_simulated_nodes(py::module_& module) {
  using namespace py::literals;
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  module.attr("PACKET_VERSION") = PacketHeader::kVersion;
  py::class_<SimulatedNodes>(module, "SimulatedNodes",
                             "All ranks of a group as threads of this process, with the real communicators and codecs.")
      .def(py::init([](int num_nodes, int ranks_per_node, const OptionsPtr& options) {
             return std::make_unique<SimulatedNodes>(num_nodes, ranks_per_node, options->values, options->timeout);
           }),
           py::kw_only(), "num_nodes"_a, "ranks_per_node"_a = 1, "options"_a)
      .def("reduce", &SimulatedNodes::reduce, unlocked, "unit"_a, "gradients"_a, "scale"_a,
           "scale times the sum of the ranks' gradients: all shards, end to end.")
      .def("all_reduce", &SimulatedNodes::all_reduce, unlocked, "unit"_a, "gradients"_a, "scale"_a,
           "scale times the sum of the ranks' gradients, as every rank has it.")
      .def("stats", &stats_of, "Of each rank, as isthmus.stats() has them of a device.");
}

}  // namespace isthmus::torch_backend
