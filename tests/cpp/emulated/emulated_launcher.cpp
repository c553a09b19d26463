#include "tests/cpp/emulated/emulated_launcher.h"

#include <cstdint>
#include <variant>

#include "codec/device_jobs.h"
#include "isthmus/error.h"
#include "tests/cpp/support/job_uses.h"

namespace isthmus::test {
namespace {

using kernels::DecodeJobBase;
using kernels::EncodeJobBase;
using kernels::TagcDecodeJob;
using kernels::TagcEncodeJob;
using kernels::TagcFlatDecodeJob;
using kernels::TagcFlatEncodeJob;
using kernels::TagcFlatMergeJob;
using kernels::WeightDecodeJob;
using kernels::WeightEncodeJob;

// Replaces addresses of the device by those behind them. Throws where a GPU could not read an array's elements: it has
// no accesses that are not aligned.
class Translate {
 public:
  explicit Translate(const EmulatedMemory& memory) : memory_(memory) {}

  template <typename T>
  void operator()(T*& address) const {
    ISTHMUS_CHECK(Error, reinterpret_cast<uintptr_t>(address) % alignof(T) == 0,
                  "a job has an array at an address that is no multiple of ", alignof(T));
    address = address == nullptr ? nullptr : static_cast<T*>(memory_.behind(address));
  }
  void operator()(ConstBuffer& buffer) const {
    if (buffer.data != nullptr) {
      buffer = memory_.behind(buffer);
    }
  }
  void operator()(Buffer& buffer) const {
    if (buffer.data != nullptr) {
      buffer = memory_.behind(buffer);
    }
  }
  void operator()(kernels::ChecksumParts& parts) const { (*this)(parts.words); }
  void operator()(kernels::SlabScratch& slabs) const { all(slabs.keys, slabs.left, slabs.tables); }

  void shared(EncodeJobBase& job) const {
    all(job.context, job.piece, job.residual, job.packet, job.counts, job.magnitudes, job.parts, job.arrived,
        job.sealed, job.counted);
  }
  void shared(DecodeJobBase& job) const {
    all(job.context, job.packets, job.own, job.out, job.sum, job.state, job.parts, job.counted);
  }
  void shared(TagcFlatMergeJob& job) const { all(job.arrived, job.index); }
  void shared(TagcFlatDecodeJob& job) const {
    all(job.wire_index, job.cells, job.out, job.counts, job.rows, job.slabs, job.keys_before);
  }
  void shared(WeightEncodeJob& job) const {
    all(job.before, job.shard, job.replica, job.sent, job.areas, job.block_bytes, job.places, job.parts,
        job.replica_parts, job.state);
  }
  void shared(kernels::ConvertJob& job) const { all(job.in, job.out); }
  void shared(kernels::MultiplyJob& job) const { all(job.values); }
  void shared(kernels::AddJob& job) const { all(job.values, job.sum); }
  void shared(kernels::SquaredErrorJob& job) const { all(job.given, job.decoded, job.parts); }
  void shared(kernels::DropResidualJob& job) const { all(job.magnitudes, job.residual, job.counts); }
  void shared(kernels::SetContextsJob& job) const { all(job.contexts); }
  void shared(kernels::NextStepJob& job) const { all(job.context); }
  void shared(kernels::RefuseUnitsJob& job) const { all(job.told, job.packets); }
  void shared(WeightDecodeJob& job) const {
    all(job.headers, job.packets, job.shard, job.replica, job.places, job.bad_blocks, job.parts, job.state);
  }

  // Parts that one codec alone has.
  template <typename Job>
  void own(Job& /*job*/) const {}
  void own(TagcEncodeJob& job) const { all(job.state, job.tie_counts, job.rows, job.slabs); }
  void own(TagcFlatEncodeJob& job) const {
    own(static_cast<TagcEncodeJob&>(job));
    all(job.wire_index, job.cells);
  }
  void own(TagcDecodeJob& job) const { all(job.found, job.rows, job.cells, job.slabs); }

 private:
  template <typename... Each>
  void all(Each&... each) const {
    ((*this)(each), ...);
  }

  const EmulatedMemory& memory_;
};

}  // namespace

EmulatedGpu::Launcher::Launcher(EmulatedGpu& gpu, std::optional<EmulatedDevice::Cut> cut)
    : gpu_(gpu), cut_(cut), counts_(gpu.allocate(sizeof(kernels::DeviceCounts))) {
  *static_cast<kernels::DeviceCounts*>(gpu.memory().behind(counts_.get())) = {};
}

template <typename Job>
void EmulatedGpu::Launcher::run_job(const Job& job, Stream stream) {
  Job translated = job;
  const Translate translate(gpu_.memory());
  translate.shared(translated);
  translate.own(translated);
  kernels::DeviceFault& fault = fault_of(stream);
  set_fault(translated, &fault, &fault);
  gpu_.enqueue(stream, name_of<Job>(), uses_of(job), [this, translated, &fault] {
    if (cut_.has_value()) {
      EmulatedDevice device(*cut_, ++num_executors_);
      kernels::emulated::run_passes(device, translated);
    } else {
      OneThreadExecutor executor;
      kernels::emulated::run_passes(executor, translated);
    }
    show_fault(fault);
  });
}

void EmulatedGpu::Launcher::run(const kernels::AnyJob& job, Stream stream) {
  std::visit([&](const auto& each) { run_job(each, stream); }, job);
}

void EmulatedGpu::Launcher::show_fault(const kernels::DeviceFault& fault) {
  const std::lock_guard lock(mutex_);
  if (fault_of_host_.reported == 0) {
    fault_of_host_ = fault;
  }
}

kernels::DeviceFault& EmulatedGpu::Launcher::fault_of(Stream stream) {
  const std::lock_guard lock(mutex_);
  return faults_[stream.handle];
}

kernels::DeviceFault EmulatedGpu::Launcher::fault_seen_by_host() {
  const std::lock_guard lock(mutex_);
  return fault_of_host_;
}

kernels::DeviceCounts EmulatedGpu::Launcher::read_counts() {
  return *static_cast<const kernels::DeviceCounts*>(gpu_.memory().behind(counts_.get()));
}

}  // namespace isthmus::test
