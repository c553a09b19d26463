// A tier over a c10d backend of CUDA tensors (NCCL).
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "isthmus/transport.h"
#include "torch/sides/c10d_transport.h"

namespace isthmus::torch_backend {

// Calls the backend's synchronous operations while the given stream is current: they are enqueued there, and nobody
// waits. The backend's timeout, watchdog and flight recorder apply. Sums are taken in the summands' type; float16
// summands are divided so that they cannot overflow. An all-reduce by kBitOr is not supported.
//
// abort() makes later operations fail. The backend's owner aborts the backend, once, and with it pending operations.
//
// Between begin_group() and end_group() all operations have one stream, and reduce-scatters and all-gathers start
// together.
class NcclTier final : public Transport {
 public:
  // tier: "intra" or "inter", for errors. between_nodes: whether all other ranks are on other nodes; else none is.
  NcclTier(std::string tier, BackendPtr backend, at::Device device, bool between_nodes);

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  SumType sum_type(DataType in) const override;
  void begin_group() override { grouped_ = true; }
  void end_group() override;
  HandlePtr reduce_scatter(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_to_all(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather(ConstBuffer in, Buffer out, Stream stream) override;
  HandlePtr all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream stream) override;
  HandlePtr all_reduce(Buffer data, ReduceOp op, Stream stream) override;
  Traffic traffic() const override;
  void abort() override { aborted_ = true; }

 private:
  // Operations that start together.
  struct Batch {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
  };

  at::Tensor tensor(ConstBuffer buffer) const;
  c10d::ReduceOp sum_of(DataType dtype) const;
  void start_reduce_scatters(Stream stream);
  void start_all_gathers(Stream stream);
  template <typename Action>
  void guard(const char* operation, Stream stream, Action action) const;
  void count_sent(int64_t bytes);

  const std::string tier_;
  const BackendPtr backend_;
  const at::Device device_;
  const bool between_nodes_;
  std::atomic<bool> aborted_{false};
  bool grouped_ = false;
  Stream group_stream_;
  Batch reduce_scatters_;
  DataType sum_dtype_ = DataType::kFloat32;  // the type in which reduce_scatters_ are summed
  Batch all_gathers_;
  mutable std::mutex traffic_mutex_;
  Traffic traffic_;
};

}  // namespace isthmus::torch_backend
