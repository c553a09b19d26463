// The functions of libisthmus_cuda that launch kernels: the same passes, each run by one group of one thread. How
// passes are cut into groups changes no result; tests/cpp/emulated/emulated_device.h is for whether that is so.
#define ISTHMUS_KERNEL_NAMESPACE fake

#include "fake_runtime.h"
#include "kernels/cuda/run.h"
#include "kernels/cuda/values.h"
#include "kernels/none/sequence.h"
#include "kernels/quant/sequence.h"
#include "kernels/sparse/sequence.h"
#include "kernels/tagc/sequence.h"
#include "kernels/values/sequence.h"
#include "kernels/weights/sequence.h"
#include "tests/cpp/support/one_thread.h"

namespace isthmus::fake_gpu {
namespace {

class Executor : public test::OneThreadExecutor {
 public:
  explicit Executor(void* stream) { check_stream(static_cast<cudaStream_t>(stream), "launch"); }
};

}  // namespace
}  // namespace isthmus::fake_gpu

#pragma GCC visibility push(default)
namespace isthmus::kernels {

using fake_gpu::Executor;

template <typename Job>
void cuda_run(const Job& job, void* stream) {
  Executor executor(stream);
  if (fake_gpu::residents_of(static_cast<cudaStream_t>(stream)).empty()) {
    fake::run_passes(executor, job);
  }
}

template [[gnu::visibility("default")]] void cuda_run(const NoneEncodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const NoneDecodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const QuantEncodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const QuantDecodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const SparseEncodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const SparseDecodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const TagcEncodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const TagcDecodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const WeightEncodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const WeightDecodeJob& job, void* stream);

void cuda_set_context(DeviceContext* context, DeviceContext value, void* stream) {
  const Executor executor(stream);
  *context = value;
}

void cuda_next_step(DeviceContext* context, void* stream) {
  const Executor executor(stream);
  ++context->step;
}

void cuda_convert(ConstBuffer in, Buffer out, void* stream) {
  Executor executor(stream);
  fake::convert(executor, in, out);
}

void cuda_convert_scaled(ConstBuffer in, double scale, Buffer out, void* stream) {
  Executor executor(stream);
  fake::convert_scaled(executor, in, scale, out);
}

void cuda_multiply(Buffer values, double factor, void* stream) {
  Executor executor(stream);
  fake::multiply(executor, values, factor);
}

void cuda_add(ConstBuffer values, Buffer sums, void* stream) {
  Executor executor(stream);
  fake::add(executor, values, sums);
}

void cuda_add_squared_error(const SquaredErrorJob& job, void* stream) {
  Executor executor(stream);
  fake::add_squared_error(executor, job);
}

void cuda_end_step(DeviceCounts* counts, bool is_skipped, void* stream) {
  Executor executor(stream);
  fake::end_step(executor, counts, is_skipped);
}

}  // namespace isthmus::kernels
#pragma GCC visibility pop
