#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "tests/cpp/emulated/emulated_launcher.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <variant>
#include <vector>

#include "codec/device_jobs.h"
#include "codec/gpu_device.h"
#include "isthmus/error.h"
#include "kernels/elementwise/sequence.h"
#include "kernels/weights/layout.h"

namespace isthmus::test {
namespace {

using kernels::DecodeJobBase;
using kernels::EncodeJobBase;
using kernels::QuantEncodeJob;
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
    all(job.context, job.piece, job.residual, job.packet, job.counts, job.guard, job.parts, job.arrived, job.sealed,
        job.counted);
  }
  void shared(DecodeJobBase& job) const {
    all(job.context, job.packets, job.own, job.out, job.sum, job.state, job.parts, job.counted);
  }
  void shared(TagcFlatMergeJob& job) const { all(job.arrived, job.index); }
  void shared(TagcFlatDecodeJob& job) const {
    all(job.wire_index, job.cells, job.out, job.counts, job.rows, job.slabs, job.keys_before);
  }
  void shared(WeightEncodeJob& job) const {
    all(job.before, job.shard, job.replica, job.sent, job.areas, job.coded, job.block_bytes, job.places, job.parts,
        job.replica_parts, job.state);
  }
  void shared(WeightDecodeJob& job) const {
    all(job.headers, job.packets, job.shard, job.replica, job.places, job.bad_blocks, job.parts, job.state);
  }

  // Parts that one codec alone has.
  void own(EncodeJobBase& /*job*/) const {}
  void own(DecodeJobBase& /*job*/) const {}
  void own(TagcFlatMergeJob& /*job*/) const {}
  void own(TagcFlatDecodeJob& /*job*/) const {}
  void own(WeightEncodeJob& /*job*/) const {}
  void own(WeightDecodeJob& /*job*/) const {}
  void own(TagcEncodeJob& job) const { all(job.state, job.tie_counts, job.peaks, job.rows, job.slabs); }
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

MemoryUse writes_parts(const kernels::ChecksumParts& parts, int64_t num_packets = 1) {
  return writes(parts.words, 8 * kernels::ChecksumParts::num_words(num_packets));
}

// What the encoding of one piece reads and writes.
void add_uses(const EncodeJobBase& job, std::vector<MemoryUse>& uses) {
  uses.push_back(reads(job.context, job.context == nullptr ? 0 : sizeof(*job.context)));
  uses.push_back(reads(job.piece));
  uses.push_back(writes(job.residual, job.residual == nullptr ? 0 : 4 * job.piece.num_elements));
  uses.push_back(writes(job.packet, job.packet_bytes));
  uses.push_back(writes_parts(job.parts));
  uses.push_back(writes(job.arrived, sizeof(*job.arrived)));
  uses.push_back(writes(job.sealed, sizeof(*job.sealed)));
  uses.push_back(writes(job.counted, job.counted == nullptr ? 0 : sizeof(*job.counted)));
  uses.push_back(writes(job.guard, job.guard == nullptr ? 0 : sizeof(*job.guard)));
}

void add_uses(const DecodeJobBase& job, std::vector<MemoryUse>& uses) {
  uses.push_back(reads(job.context, job.context == nullptr ? 0 : sizeof(*job.context)));
  for (int64_t i = 0; i < job.num_packets; ++i) {
    uses.push_back(reads(job.packets + job.place_of(i) * job.packet_bytes, job.packet_bytes));
  }
  if (job.own.data != nullptr) {
    uses.push_back(reads(job.own));
  }
  uses.push_back(writes(job.sum));
  uses.push_back(writes(job.out));
  uses.push_back(writes(job.state, sizeof(*job.state)));
  uses.push_back(writes_parts(job.parts, job.num_places()));
  uses.push_back(writes(job.counted, job.counted == nullptr ? 0 : sizeof(*job.counted)));
}

void add_uses(const WeightEncodeJob& job, std::vector<MemoryUse>& uses) {
  const int64_t num_blocks = kernels::weight_shape(job.shard).num_blocks();
  uses.push_back(reads(job.before));
  uses.push_back(reads(job.shard));
  uses.push_back(reads(job.replica));
  uses.push_back(writes(job.sent, kernels::kWeightHeaderBytes + job.most_bytes));
  uses.push_back(writes(job.state, sizeof(*job.state)));
  uses.push_back(writes(job.block_bytes, num_blocks * static_cast<int64_t>(sizeof(*job.block_bytes))));
  uses.push_back(writes_parts(job.parts));
  uses.push_back(writes_parts(job.replica_parts));
}

void add_uses(const WeightDecodeJob& job, std::vector<MemoryUse>& uses) {
  uses.push_back(reads(job.headers, job.num_nodes * kernels::kWeightHeaderBytes));
  uses.push_back(reads(job.packets, job.num_nodes * job.row_bytes));
  uses.push_back(reads(job.shard));
  uses.push_back(writes(job.replica));
  uses.push_back(writes(job.state, sizeof(*job.state)));
  uses.push_back(writes(job.bad_blocks, job.num_nodes * static_cast<int64_t>(sizeof(*job.bad_blocks))));
  uses.push_back(writes_parts(job.parts, job.num_nodes));
}

void add_uses(const TagcFlatMergeJob& job, std::vector<MemoryUse>& uses) {
  uses.push_back(reads(job.arrived, 8 * job.num_words));
  uses.push_back(writes(job.index, 8 * job.num_words));
}

void add_uses(const TagcFlatDecodeJob& job, std::vector<MemoryUse>& uses) {
  uses.push_back(reads(job.wire_index, 8 * job.shape.index_words()));
  uses.push_back(writes(job.cells, job.shape.sketch_bytes()));
  uses.push_back(writes(job.out, 4 * job.shape.num_elements));
  uses.push_back(writes(job.rows, 16 * job.shape.num_blocks));
  uses.push_back(adds_to(job.counts, sizeof(*job.counts)));
}

// What passes of one codec use besides.
void add_own_uses(const EncodeJobBase& /*job*/, std::vector<MemoryUse>& /*uses*/) {}
void add_own_uses(const DecodeJobBase& /*job*/, std::vector<MemoryUse>& /*uses*/) {}
void add_own_uses(const TagcFlatMergeJob& /*job*/, std::vector<MemoryUse>& /*uses*/) {}
void add_own_uses(const TagcFlatDecodeJob& /*job*/, std::vector<MemoryUse>& /*uses*/) {}
void add_own_uses(const WeightEncodeJob& /*job*/, std::vector<MemoryUse>& /*uses*/) {}
void add_own_uses(const WeightDecodeJob& /*job*/, std::vector<MemoryUse>& /*uses*/) {}

void add_own_uses(const QuantEncodeJob& job, std::vector<MemoryUse>& uses) {
  uses.push_back(adds_to(job.counts, sizeof(*job.counts)));
}

void add_own_uses(const TagcEncodeJob& job, std::vector<MemoryUse>& uses) {
  uses.push_back(writes(job.state, sizeof(*job.state)));
  uses.push_back(writes(job.rows, 16 * job.shape.num_blocks));
  uses.push_back(adds_to(job.counts, sizeof(*job.counts)));
}
void add_own_uses(const TagcFlatEncodeJob& job, std::vector<MemoryUse>& uses) {
  add_own_uses(static_cast<const TagcEncodeJob&>(job), uses);
  uses.push_back(writes(job.wire_index, 8 * job.shape.index_words()));
  uses.push_back(writes(job.cells, job.shape.sketch_bytes()));
}
void add_own_uses(const TagcDecodeJob& job, std::vector<MemoryUse>& uses) {
  uses.push_back(writes(job.found, 4 * job.num_places()));
  uses.push_back(writes(job.rows, 16 * job.shape.num_blocks));
}

const char* name_of(const kernels::NoneEncodeJob& /*job*/) { return "encode none"; }
const char* name_of(const kernels::NoneDecodeJob& /*job*/) { return "decode none"; }
const char* name_of(const QuantEncodeJob& /*job*/) { return "encode quant"; }
const char* name_of(const kernels::QuantDecodeJob& /*job*/) { return "decode quant"; }
const char* name_of(const TagcEncodeJob& /*job*/) { return "encode tagc"; }
const char* name_of(const TagcDecodeJob& /*job*/) { return "decode tagc"; }
const char* name_of(const TagcFlatEncodeJob& /*job*/) { return "encode flat tagc"; }
const char* name_of(const TagcFlatMergeJob& /*job*/) { return "merge flat tagc"; }
const char* name_of(const TagcFlatDecodeJob& /*job*/) { return "decode flat tagc"; }
const char* name_of(const WeightEncodeJob& /*job*/) { return "encode weights"; }
const char* name_of(const WeightDecodeJob& /*job*/) { return "decode weights"; }

}  // namespace

EmulatedGpu::Launcher::Launcher(EmulatedGpu& gpu, std::optional<EmulatedDevice::Cut> cut)
    : gpu_(gpu), cut_(cut), counts_(gpu.allocate(sizeof(kernels::DeviceCounts))) {
  *static_cast<kernels::DeviceCounts*>(gpu.memory().behind(counts_.get())) = {};
}

template <typename Job>
void EmulatedGpu::Launcher::run_job(const Job& job, Stream stream) {
  std::vector<MemoryUse> uses;
  if constexpr (std::is_base_of_v<EncodeJobBase, Job>) {
    for (int64_t i = 0; i < job.num_pieces; ++i) {
      Job of_piece = job;
      of_piece.go_to(i);
      add_uses(of_piece, uses);
      add_own_uses(of_piece, uses);
    }
  } else {
    add_uses(job, uses);
    add_own_uses(job, uses);
  }
  Job translated = job;
  const Translate translate(gpu_.memory());
  translate.shared(translated);
  translate.own(translated);
  if constexpr (std::is_same_v<WeightDecodeJob, Job>) {
    translated.mapped_fault = &fault_of_weights_;
  }
  gpu_.enqueue(stream, name_of(job), uses, [this, translated] {
    on_executor([&](auto& executor) { kernels::emulated::run_passes(executor, translated); });
    if constexpr (std::is_base_of_v<DecodeJobBase, Job>) {
      show_fault(fault_);
    } else if constexpr (std::is_same_v<WeightDecodeJob, Job>) {
      show_fault(fault_of_weights_);
    }
  });
}

void EmulatedGpu::Launcher::run(const kernels::Job& job, Stream stream) {
  std::visit([&](const auto& each) { run_job(each, stream); }, job);
}

void EmulatedGpu::Launcher::show_fault(const kernels::DeviceFault& fault) {
  const std::lock_guard lock(mutex_);
  if (fault_of_host_.reported == 0) {
    fault_of_host_ = fault;
  }
}

kernels::DeviceFault EmulatedGpu::Launcher::fault_seen_by_host() {
  const std::lock_guard lock(mutex_);
  return fault_of_host_;
}

kernels::DeviceCounts EmulatedGpu::Launcher::read_counts() {
  return *static_cast<const kernels::DeviceCounts*>(gpu_.memory().behind(counts_.get()));
}

void EmulatedGpu::Launcher::guard_residual(ResidualGuard* guard, Buffer residual, Stream stream) {
  auto* counts = static_cast<kernels::DeviceCounts*>(gpu_.memory().behind(counts_.get()));
  auto* behind = static_cast<ResidualGuard*>(gpu_.memory().behind(guard));
  gpu_.enqueue(stream, "guard residual",
               {writes(residual), writes(guard, sizeof(*guard)), adds_to(counts_.get(), sizeof(*counts))},
               [this, behind, to = gpu_.memory().behind(residual), counts] {
                 on_executor([&](auto& executor) { kernels::emulated::guard_residual(executor, behind, to, counts); });
               });
}

void EmulatedGpu::Launcher::add_squared_error(const kernels::SquaredErrorJob& job,
                                              const std::shared_ptr<SquaredError>& error, Stream stream) {
  const std::vector<MemoryUse> uses = {
      reads(job.given, 4 * job.num_elements),
      reads(job.decoded, 4 * job.num_elements),
      writes(job.parts, kSquaredErrorScratchBytes),
  };
  kernels::SquaredErrorJob translated = job;
  const Translate translate(gpu_.memory());
  translate(translated.given);
  translate(translated.decoded);
  translate(translated.parts);
  gpu_.enqueue(stream, "squared error", uses, [this, translated, error] {
    on_executor([&](auto& executor) { kernels::emulated::add_squared_error(executor, translated); });
  });
}

}  // namespace isthmus::test
