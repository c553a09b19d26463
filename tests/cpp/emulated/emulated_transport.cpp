#include "tests/cpp/emulated/emulated_transport.h"

#include <bit>
#include <utility>

#include "isthmus/error.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {
namespace {

// The stream is what waits.
class Enqueued final : public Handle {
 public:
  void wait(Stream /*stream*/) override {}
};

}  // namespace

EmulatedTransport::EmulatedTransport(std::shared_ptr<EmulatedGpu> gpu, std::shared_ptr<Transport> tier,
                                     bool between_nodes, Sums sums)
    : gpu_(std::move(gpu)),
      tier_(std::move(tier)),
      between_nodes_(between_nodes),
      sums_(sums),
      order_(gpu_->allocate(1)) {}

EmulatedTransport::~EmulatedTransport() {
  if (in_group_) {
    gpu_->complain("a group of operations was begun and not ended");
  }
}

SumType EmulatedTransport::sum_type(DataType in) const {
  if (sums_ == Sums::kAccumulated) {
    return Transport::sum_type(in);
  }
  const auto size_or_more = static_cast<double>(std::bit_ceil(static_cast<unsigned>(size())));
  return {in, in == DataType::kFloat16 ? size_or_more : 1};
}

void EmulatedTransport::begin_group() {
  if (std::exchange(in_group_, true)) {
    gpu_->complain("a group of operations was begun in another one");
  }
}

void EmulatedTransport::end_group() {
  if (!std::exchange(in_group_, false)) {
    gpu_->complain("a group of operations ended that was not begun");
  }
  groups_.push_back(static_cast<int>(group_.size()));
  for (const Operation& operation : std::exchange(group_, {})) {
    enqueue(operation);
  }
}

HandlePtr EmulatedTransport::start(Stream stream, const std::string& what, std::vector<MemoryUse> uses,
                                   EmulatedGpu::Work work) {
  throw_if_failed();
  uses.push_back(writes(order_.get(), 1));
  Operation operation = {stream, what, std::move(uses), std::move(work)};
  if (in_group_) {
    group_.push_back(std::move(operation));
  } else {
    enqueue(operation);
  }
  return std::make_unique<Enqueued>();
}

HandlePtr EmulatedTransport::start(Stream stream, const std::string& what, std::vector<MemoryUse> uses,
                                   TierOperation operation, ConstBuffer in, Buffer out) {
  return start(stream, what, std::move(uses),
               [this, operation, from = gpu_->memory().behind(in), to = gpu_->memory().behind(out)] {
                 (tier_.get()->*operation)(from, to, {})->wait();
               });
}

void EmulatedTransport::enqueue(const Operation& operation) {
  gpu_->enqueue(operation.stream, operation.what, operation.uses, [this, work = operation.work] { run(work); });
}

void EmulatedTransport::run(const EmulatedGpu::Work& work) {
  try {
    work();
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    failure_ = error.what();
  }
}

void EmulatedTransport::throw_if_failed() {
  tier_->throw_if_failed();
  const std::lock_guard lock(mutex_);
  ISTHMUS_CHECK(TransportError, failure_.empty(), failure_);
}

void EmulatedTransport::count_sent(int64_t bytes_to_each_peer) {
  const int64_t bytes = (size() - 1) * bytes_to_each_peer;
  traffic_.sent_bytes += bytes;
  traffic_.inter_node_sent_bytes += between_nodes_ ? bytes : 0;
}

HandlePtr EmulatedTransport::reduce_scatter(ConstBuffer in, Buffer out, Stream stream) {
  const DataType sum_dtype = sum_type(in.dtype).dtype;
  ISTHMUS_CHECK(Error, out.dtype == sum_dtype, "reduce_scatter of ", to_string(in.dtype), " into ",
                to_string(out.dtype), ": expected ", to_string(sum_dtype));
  count_sent(in.bytes() / size());
  if (sums_ == Sums::kLikeNccl) {
    return start(stream, "reduce-scatter", {reads(in), writes(out)},
                 [this, from = gpu_->memory().behind(in), to = gpu_->memory().behind(out)] { sum_as_nccl(from, to); });
  }
  return start(stream, "reduce-scatter", {reads(in), writes(out)}, &Transport::reduce_scatter, in, out);
}

void EmulatedTransport::sum_as_nccl(ConstBuffer in, Buffer out) {
  const double divisor = sum_type(in.dtype).divisor;
  Array divided_values(in.num_elements, in.dtype);
  Array arrived_values(in.num_elements, in.dtype);
  Array wide_values(out.num_elements, accumulate_dtype(in.dtype));
  const Buffer divided = divided_values.buffer();
  const Buffer arrived = arrived_values.buffer();
  const Buffer wide = wide_values.buffer();
  convert_scaled(in, 1 / divisor, divided);
  tier_->all_to_all(divided, arrived, {})->wait();
  const Buffer own = arrived.part(rank(), out.num_elements);
  convert(divided.part(rank(), out.num_elements), own);
  convert(arrived.part(0, out.num_elements), out);
  for (int peer = 1; peer < size(); ++peer) {
    convert(out, wide);
    accumulate(arrived.part(peer, out.num_elements), wide);
    convert(wide, out);
  }
}

HandlePtr EmulatedTransport::all_to_all(ConstBuffer in, Buffer out, Stream stream) {
  count_sent(in.bytes() / size());
  return start(stream, "all-to-all", {reads(in), writes(out)}, &Transport::all_to_all, in, out);
}

// In place NCCL does not write this rank's own part.
HandlePtr EmulatedTransport::all_gather(ConstBuffer in, Buffer out, Stream stream) {
  count_sent(in.bytes());
  return all_gather_uncounted(in, out, stream);
}

HandlePtr EmulatedTransport::all_gather_uncounted(ConstBuffer in, Buffer out, Stream stream) {
  std::vector<MemoryUse> uses = {reads(in)};
  for (int part = 0; part < size(); ++part) {
    const Buffer written = out.part(part, in.num_elements);
    if (written.data != in.data) {
      uses.push_back(writes(written));
    }
  }
  return start(stream, "all-gather", std::move(uses), &Transport::all_gather, in, out);
}

HandlePtr EmulatedTransport::all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream stream) {
  count_sent(in.bytes());
  std::vector<MemoryUse> uses = {reads(in)};
  std::vector<Buffer> to;
  for (const Buffer& arriving : out) {
    uses.push_back(writes(arriving));
    to.push_back(gpu_->memory().behind(arriving));
  }
  return start(stream, "uneven all-gather", std::move(uses),
               [this, from = gpu_->memory().behind(in), to] { tier_->all_gather_uneven(from, to, {})->wait(); });
}

HandlePtr EmulatedTransport::pass_on(ConstBuffer in, Buffer out, Stream stream) {
  traffic_.sent_bytes += in.bytes();
  traffic_.inter_node_sent_bytes += between_nodes_ ? in.bytes() : 0;
  return start(stream, "pass-on", {reads(in), writes(out)}, &Transport::pass_on, in, out);
}

}  // namespace isthmus::test
