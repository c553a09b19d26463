// The functions of libisthmus_cuda that launch kernels: the same passes, each run by one group of one thread. How
// passes are cut into groups changes no result; tests/cpp/emulated/emulated_device.h is for whether that is so.
#define ISTHMUS_KERNEL_NAMESPACE fake

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>

#include "fake_runtime.h"
#include "kernels/cuda/run.h"
#include "kernels/elementwise/run_passes.h"
#include "kernels/none/run_passes.h"
#include "kernels/quant/run_passes.h"
#include "kernels/tagc/run_passes.h"
#include "kernels/units/run_passes.h"
#include "kernels/weights/run_passes.h"
#include "tests/cpp/support/job_uses.h"
#include "tests/cpp/support/one_thread.h"

namespace isthmus::fake_gpu {
namespace {

// "QuantizeBlocks", without namespaces and arguments, and without the pieces that it runs for.
template <typename Pass>
const std::string& name_of_pass() {
  static const std::string name = [] {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> demangled(
        abi::__cxa_demangle(typeid(Pass).name(), nullptr, nullptr, &status), std::free);
    std::string text = status == 0 ? demangled.get() : typeid(Pass).name();
    const std::string each = "OfEachPiece<";
    const size_t wrapped = text.find(each);
    text = wrapped == std::string::npos ? text : text.substr(wrapped + each.size());
    text = text.substr(0, text.find_first_of("<>"));
    return text.substr(text.rfind(':') + 1);
  }();
  return name;
}

class Executor : public test::OneThreadExecutor {
 public:
  explicit Executor(void* stream) { check_stream(static_cast<cudaStream_t>(stream), "launch"); }

  static void clear(void* memory, int64_t bytes) {
    const DeviceWork work;
    const kernels::Moved moved = {0, bytes};
    count_launch("clear", &moved);
    OneThreadExecutor::clear(memory, bytes);
  }

  template <typename Pass>
  void run(const Pass& pass, int64_t max_groups, int64_t shared_bytes = kernels::most_shared_bytes<Pass>()) {
    const DeviceWork work;
    if constexpr (requires { pass.moved(); }) {
      const kernels::Moved moved = pass.moved();
      count_launch(name_of_pass<Pass>(), &moved);
    } else {
      count_launch(name_of_pass<Pass>(), nullptr);
    }
    OneThreadExecutor::run(pass, max_groups, shared_bytes);
  }
};

}  // namespace
}  // namespace isthmus::fake_gpu

#pragma GCC visibility push(default)
namespace isthmus::kernels {

using fake_gpu::Executor;

template <typename Job>
void cuda_run(const Job& job, void* stream) {
  Executor executor(stream);
  fake_gpu::trace_work(test::name_of<Job>(), static_cast<cudaStream_t>(stream), test::uses_of(job));
  if (fake_gpu::residents_of(static_cast<cudaStream_t>(stream)).empty()) {
    fake::run_passes(executor, job);
  }
}

template [[gnu::visibility("default")]] void cuda_run(const NoneEncodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const NoneDecodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const QuantEncodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const QuantDecodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const TagcEncodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const TagcDecodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const TagcFlatEncodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const TagcFlatMergeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const TagcFlatDecodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const WeightEncodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const WeightDecodeJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const RefuseUnitsJob& job, void* stream);

void cuda_set_contexts(DeviceContext* contexts, int count, DeviceContext value, void* stream) {
  const Executor executor(stream);
  const Moved nothing;
  fake_gpu::count_launch("SetContexts", &nothing);
  std::fill_n(contexts, count, value);
}

void cuda_next_step(DeviceContext* context, void* stream) {
  const Executor executor(stream);
  const Moved nothing;
  fake_gpu::count_launch("NextStep", &nothing);
  ++context->step;
}

void cuda_convert(ConstBuffer in, Buffer out, void* stream) {
  Executor executor(stream);
  fake_gpu::trace_work("convert", static_cast<cudaStream_t>(stream), {test::reads(in), test::writes(out)});
  fake::convert(executor, in, out);
}

void cuda_convert_scaled(ConstBuffer in, double scale, Buffer out, void* stream) {
  Executor executor(stream);
  fake_gpu::trace_work("convert", static_cast<cudaStream_t>(stream), {test::reads(in), test::writes(out)});
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

void cuda_drop_residual_after_spike(Magnitudes* magnitudes, Buffer residual, DeviceCounts* counts, void* stream) {
  Executor executor(stream);
  fake_gpu::trace_work("drop residual after spike", static_cast<cudaStream_t>(stream), {test::writes(residual)});
  fake::drop_residual_after_spike(executor, magnitudes, residual, counts);
}

}  // namespace isthmus::kernels
#pragma GCC visibility pop
