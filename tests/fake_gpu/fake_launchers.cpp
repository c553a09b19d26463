// The functions of libisthmus_cuda that launch kernels: the same passes, each run by one group of one thread. How
// passes are cut into groups changes no result; tests/cpp/emulated/emulated_device.h is for whether that is so.
#define ISTHMUS_KERNEL_NAMESPACE fake

#include <cxxabi.h>

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
template [[gnu::visibility("default")]] void cuda_run(const ConvertJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const MultiplyJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const AddJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const SquaredErrorJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const DropResidualJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const SetContextsJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const NextStepJob& job, void* stream);
template [[gnu::visibility("default")]] void cuda_run(const RefuseUnitsJob& job, void* stream);

}  // namespace isthmus::kernels
#pragma GCC visibility pop
