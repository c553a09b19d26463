#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "tests/cpp/emulated/emulated_passes.h"

#include <variant>

#include "kernels/none/sequence.h"
#include "kernels/quant/sequence.h"
#include "kernels/tagc/sequence.h"
#include "kernels/weights/sequence.h"

namespace isthmus::kernels::emulated {

static_assert(IsGroup<test::EmulatedGroup>);

void run_passes(test::EmulatedDevice& executor, const Job& job) {
  std::visit([&](const auto& each) { run_passes(executor, each); }, job);
}
void run_passes(test::OneThreadExecutor& executor, const Job& job) {
  std::visit([&](const auto& each) { run_passes(executor, each); }, job);
}

}  // namespace isthmus::kernels::emulated
