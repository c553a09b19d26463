#include "torch/cuda/nccl_tier.h"

#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <bit>
#include <utility>

#include "isthmus/error.h"
#include "torch/base/tensors.h"

namespace isthmus::torch_backend {
namespace {

// Operations are ordered by the stream they were given, so there is nothing to wait for.
class EnqueuedHandle final : public Handle {
 public:
  void wait(Stream /*stream*/) override {}
};

template <typename CallOptions>
CallOptions synchronous() {
  CallOptions options;
  options.asyncOp = false;
  return options;
}

}  // namespace

NcclTier::NcclTier(std::string tier, BackendPtr backend, at::Device device, bool between_nodes)
    : tier_(std::move(tier)), backend_(std::move(backend)), device_(device), between_nodes_(between_nodes) {}

SumType NcclTier::sum_type(DataType in) const {
  const double divisor = in == DataType::kFloat16 ? std::bit_ceil(static_cast<unsigned>(size())) : 1;
  return {in, divisor};
}

HandlePtr NcclTier::reduce_scatter(ConstBuffer in, Buffer out, Stream stream) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements * size() && in.dtype == out.dtype, tier_,
                " reduce-scatter of ", in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements, " x ",
                to_string(out.dtype), " over ", size(), " ranks");
  if (in.num_elements > 0) {
    count_sent((size() - 1) * out.bytes());
    reduce_scatters_.inputs.push_back(tensor(in));
    reduce_scatters_.outputs.push_back(tensor(out));
    sum_dtype_ = in.dtype;
    group_stream_ = stream;
    if (!grouped_) {
      start_reduce_scatters(stream);
    }
  }
  return std::make_unique<EnqueuedHandle>();
}

HandlePtr NcclTier::all_gather(ConstBuffer in, Buffer out, Stream stream) {
  ISTHMUS_CHECK(Error, in.num_elements * size() == out.num_elements && in.dtype == out.dtype, tier_, " all-gather of ",
                in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements, " x ", to_string(out.dtype),
                " over ", size(), " ranks");
  if (in.num_elements > 0) {
    count_sent((size() - 1) * in.bytes());
    all_gathers_.inputs.push_back(tensor(in));
    all_gathers_.outputs.push_back(tensor(out));
    group_stream_ = stream;
    if (!grouped_) {
      start_all_gathers(stream);
    }
  }
  return std::make_unique<EnqueuedHandle>();
}

void NcclTier::end_group() {
  grouped_ = false;
  start_reduce_scatters(group_stream_);
  start_all_gathers(group_stream_);
}

void NcclTier::start_reduce_scatters(Stream stream) {
  Batch batch = std::exchange(reduce_scatters_, {});
  if (batch.inputs.empty()) {
    return;
  }
  guard("reduce-scatter", stream, [&] {
    auto options = synchronous<c10d::ReduceScatterOptions>();
    options.reduceOp = sum_of(sum_dtype_);
    if (batch.inputs.size() == 1) {
      backend_->_reduce_scatter_base(batch.outputs[0], batch.inputs[0], options);
    } else {
      backend_->reduce_scatter_tensor_coalesced(batch.outputs, batch.inputs, options);
    }
  });
}

void NcclTier::start_all_gathers(Stream stream) {
  Batch batch = std::exchange(all_gathers_, {});
  if (batch.inputs.empty()) {
    return;
  }
  guard("all-gather", stream, [&] {
    const auto options = synchronous<c10d::AllgatherOptions>();
    if (batch.inputs.size() == 1) {
      backend_->_allgather_base(batch.outputs[0], batch.inputs[0], options);
    } else {
      backend_->allgather_into_tensor_coalesced(batch.outputs, batch.inputs, options);
    }
  });
}

// This rank's own part is passed as empty, and NCCL's backend skips empty parts.
HandlePtr NcclTier::all_to_all(ConstBuffer in, Buffer out, Stream stream) {
  ISTHMUS_CHECK(Error, in.num_elements == out.num_elements && in.dtype == out.dtype && in.num_elements % size() == 0,
                tier_, " all-to-all of ", in.num_elements, " x ", to_string(in.dtype), " into ", out.num_elements,
                " x ", to_string(out.dtype), " over ", size(), " ranks");
  if (in.num_elements > 0 && size() > 1) {
    const int64_t part_elements = in.num_elements / size();
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    for (int peer = 0; peer < size(); ++peer) {
      const int64_t exchanged = peer == rank() ? 0 : part_elements;
      inputs.push_back(tensor(in.slice(peer * part_elements, exchanged)));
      outputs.push_back(tensor(out.slice(peer * part_elements, exchanged)));
    }
    count_sent((size() - 1) * in.part(0, part_elements).bytes());
    guard("all-to-all", stream, [&] { backend_->alltoall(outputs, inputs, synchronous<c10d::AllToAllOptions>()); });
  }
  return std::make_unique<EnqueuedHandle>();
}

HandlePtr NcclTier::all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream stream) {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  for (int peer = 0; peer < size(); ++peer) {
    const Buffer& arriving = out[static_cast<size_t>(peer)];
    inputs.push_back(tensor(in.slice(0, peer == rank() ? 0 : in.num_elements)));
    outputs.push_back(tensor(arriving.slice(0, peer == rank() ? 0 : arriving.num_elements)));
  }
  count_sent((size() - 1) * in.bytes());
  guard("uneven all-gather", stream, [&] { backend_->alltoall(outputs, inputs, synchronous<c10d::AllToAllOptions>()); });
  return std::make_unique<EnqueuedHandle>();
}

HandlePtr NcclTier::all_reduce(Buffer data, ReduceOp op, Stream stream) {
  ISTHMUS_CHECK(Error, op == ReduceOp::kSum, tier_, " all-reduce: NCCL has no bitwise or");
  if (data.num_elements > 0) {
    count_sent(2 * data.bytes() * (size() - 1) / size());
    guard("all-reduce", stream, [&] {
      std::vector<at::Tensor> tensors{tensor(data)};
      backend_->allreduce(tensors, synchronous<c10d::AllreduceOptions>());
    });
  }
  return std::make_unique<EnqueuedHandle>();
}

Traffic NcclTier::traffic() const {
  const std::lock_guard lock(traffic_mutex_);
  return traffic_;
}

at::Tensor NcclTier::tensor(ConstBuffer buffer) const {
  return at::for_blob(const_cast<void*>(buffer.data), {buffer.num_elements})
      .options(at::TensorOptions().dtype(scalar_type(buffer.dtype)).device(device_))
      .target_device(device_)
      .make_tensor();
}

c10d::ReduceOp NcclTier::sum_of(DataType dtype) const {
  const double divisor = sum_type(dtype).divisor;
  c10d::ReduceOp op(c10d::ReduceOp::SUM);
  if (divisor != 1) {  // like makeNCCLPreMulSum(), which newer torches call makePreMulSum()
    op.op_ = c10d::ReduceOp::PREMUL_SUM;
    op.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(1 / divisor);
  }
  return op;
}

template <typename Action>
void NcclTier::guard(const char* operation, Stream stream, Action action) const {
  ISTHMUS_CHECK(TransportError, !aborted_, tier_, " ", operation, ": aborted");
  const c10::cuda::CUDAStreamGuard on_stream(
      c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream.handle), device_.index()));
  try {
    action();
  } catch (const c10::Error& error) {
    throw TransportError(detail::concatenate(tier_, " ", operation, ": ", error.what_without_backtrace()));
  }
}

void NcclTier::count_sent(int64_t bytes) {
  const std::lock_guard lock(traffic_mutex_);
  traffic_.sent_bytes += bytes;
  traffic_.inter_node_sent_bytes += between_nodes_ ? bytes : 0;
}

}  // namespace isthmus::torch_backend
