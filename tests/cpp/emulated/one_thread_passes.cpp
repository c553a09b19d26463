// See emulated_passes.h. This file has the passes on one thread.
#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "kernels/none/sequence.h"
#include "kernels/quant/sequence.h"
#include "kernels/tagc/sequence.h"
#include "kernels/weights/sequence.h"
#include "tests/cpp/emulated/emulated_passes.h"

namespace isthmus::kernels::emulated {

using test::OneThreadExecutor;

void run_passes(OneThreadExecutor& executor, const NoneEncodeJob& job) { run_passes<OneThreadExecutor>(executor, job); }
void run_passes(OneThreadExecutor& executor, const NoneDecodeJob& job) { run_passes<OneThreadExecutor>(executor, job); }
void run_passes(OneThreadExecutor& executor, const QuantEncodeJob& job) {
  run_passes<OneThreadExecutor>(executor, job);
}
void run_passes(OneThreadExecutor& executor, const QuantDecodeJob& job) {
  run_passes<OneThreadExecutor>(executor, job);
}
void run_passes(OneThreadExecutor& executor, const TagcEncodeJob& job) { run_passes<OneThreadExecutor>(executor, job); }
void run_passes(OneThreadExecutor& executor, const TagcDecodeJob& job) { run_passes<OneThreadExecutor>(executor, job); }
void run_passes(OneThreadExecutor& executor, const WeightEncodeJob& job) {
  run_passes<OneThreadExecutor>(executor, job);
}
void run_passes(OneThreadExecutor& executor, const WeightDecodeJob& job) {
  run_passes<OneThreadExecutor>(executor, job);
}

}  // namespace isthmus::kernels::emulated
