#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "tests/cpp/emulated/emulated_passes.h"

#include <variant>

#include "kernels/elementwise/run_passes.h"
#include "kernels/none/run_passes.h"
#include "kernels/quant/run_passes.h"
#include "kernels/tagc/run_passes.h"
#include "kernels/weights/run_passes.h"

namespace isthmus::kernels::emulated {

static_assert(IsGroup<test::EmulatedGroup>);

void run_passes(test::EmulatedDevice& executor, const AnyJob& job) {
  std::visit([&](const auto& each) { run_passes(executor, each); }, job);
}
void run_passes(test::OneThreadExecutor& executor, const AnyJob& job) {
  std::visit([&](const auto& each) { run_passes(executor, each); }, job);
}

}  // namespace isthmus::kernels::emulated
