// See emulated_passes.h. This file has the passes on one thread.
#define ISTHMUS_KERNEL_NAMESPACE emulated

#include <variant>

#include "kernels/none/sequence.h"
#include "kernels/quant/sequence.h"
#include "kernels/tagc/sequence.h"
#include "kernels/weights/sequence.h"
#include "tests/cpp/emulated/emulated_passes.h"

namespace isthmus::kernels::emulated {

void run_passes(test::OneThreadExecutor& executor, const Job& job) {
  std::visit([&](const auto& each) { run_passes(executor, each); }, job);
}

}  // namespace isthmus::kernels::emulated
