// The pass that compares units; kernels/block/passes.h says what an executor is.
#pragma once

#include "kernels/block/packet_passes.h"
#include "kernels/units/job.h"

namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE {

// One thread of one group does it: there are few ranks.
struct RefuseOtherUnits {
  RefuseUnitsJob job;

  Moved moved() const { return {job.num_ranks * static_cast<int64_t>(sizeof(DeviceContext)), 0}; }

  template <typename Group>
  ISTHMUS_DEVICE void operator()(Group& group) const {
    if (group.group_number() != 0 || group.thread() != 0) {
      return;
    }
    for (int64_t i = 0; i < job.num_ranks; ++i) {
      if (job.told[i].unit_hash != job.unit_hash) {
        refuse(group, job.told[i]);
        return;
      }
    }
  }

 private:
  template <typename Group>
  ISTHMUS_DEVICE void refuse(Group& group, const DeviceContext& other) const {
    DeviceFault fault;
    fault.code = DeviceFault::code_of(static_cast<int64_t>(other.step), FaultKind::kUnits);
    fault.expected.word[kHeaderUnit] = job.unit_hash;
    fault.received.word[kHeaderUnit] = other.unit_hash;
    copy_fault(group, fault, *job.mapped_fault);
    for (int64_t i = 0; i < job.num_packets; ++i) {
      reinterpret_cast<uint64_t*>(job.packets + i * job.packet_bytes)[kHeaderUnit] = ~job.unit_hash;
    }
  }
};

template <typename Executor>
void run_passes(Executor& executor, const RefuseUnitsJob& job) {
  executor.run(RefuseOtherUnits{job}, 1);
}

}  // namespace isthmus::kernels::ISTHMUS_KERNEL_NAMESPACE
