#include "emulated_launcher.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "codec/device_fault.h"
#include "emulated_device.h"
#include "kernels/none_sequence.h"
#include "kernels/tagc_sequence.h"
#include "kernels/values_sequence.h"

namespace isthmus::test {
namespace {

using kernels::NoneDecodeJob;
using kernels::NoneEncodeJob;
using kernels::TagcDecodeJob;
using kernels::TagcEncodeJob;

// An executor of passes (kernels/tagc_sequence.h) on one group of one thread, which never waits.
struct OneThread {
  void clear(void* memory, int64_t bytes) { std::memset(memory, 0, static_cast<size_t>(bytes)); }

  template <typename Pass>
  void run(const Pass& pass, int64_t /*max_groups*/, int64_t shared_bytes) {
    std::vector<EmulatedGroupState> groups = make_group_states(1, 1, shared_bytes);
    groups[0].wait = [](const char*) {};
    EmulatedGroup group(groups.data(), 0, 1, 0, 1);
    pass(group);
  }
};

// Replaces addresses of the device by those behind them.
class Translate {
 public:
  explicit Translate(const EmulatedMemory& memory) : memory_(memory) {}

  template <typename T>
  void operator()(T*& address) const {
    address = address == nullptr ? nullptr : static_cast<T*>(memory_.behind(address));
  }
  void operator()(ConstBuffer& buffer) const { buffer = memory_.behind(buffer); }
  void operator()(Buffer& buffer) const { buffer = memory_.behind(buffer); }
  void operator()(kernels::ChecksumParts& parts) const { (*this)(parts.words); }
  void operator()(kernels::SlabScratch& slabs) const {
    (*this)(slabs.keys);
    (*this)(slabs.left);
    (*this)(slabs.tables);
  }

 private:
  const EmulatedMemory& memory_;
};

MemoryUse writes_parts(const kernels::ChecksumParts& parts, int64_t num_packets = 1) {
  return writes(parts.words, 8 * kernels::ChecksumParts::num_words(num_packets));
}

MemoryUse reads_context(const kernels::DeviceContext* context) { return reads(context, sizeof(*context)); }

}  // namespace

EmulatedGpu::Launcher::Launcher(EmulatedGpu& gpu) : gpu_(gpu), counts_(gpu.allocate(sizeof(kernels::DeviceCounts))) {
  *static_cast<kernels::DeviceCounts*>(gpu.memory().behind(counts_.get())) = {};
}

void EmulatedGpu::Launcher::encode(const TagcEncodeJob& job, Stream stream) {
  const int64_t blocks = job.shape.num_blocks;
  const std::vector<MemoryUse> uses = {
      reads_context(job.context),
      reads(job.piece),
      writes(job.residual, 4 * job.shape.num_elements),
      writes(job.packet, job.layout.end),
      writes(job.state, sizeof(*job.state)),
      writes_parts(job.parts),
      writes(job.rows, 16 * blocks),
      adds_to(job.counts, sizeof(*job.counts)),
  };
  TagcEncodeJob translated = job;
  const Translate translate(gpu_.memory());
  translate(translated.context);
  translate(translated.piece);
  translate(translated.residual);
  translate(translated.packet);
  translate(translated.counts);
  translate(translated.state);
  translate(translated.tie_counts);
  translate(translated.parts);
  translate(translated.rows);
  translate(translated.slabs);
  gpu_.enqueue(stream, "encode tagc", uses, [translated] {
    OneThread executor;
    kernels::emulated::encode_tagc(executor, translated);
  });
}

void EmulatedGpu::Launcher::decode(const TagcDecodeJob& job, Stream stream) {
  const std::vector<MemoryUse> uses = {
      reads_context(job.context),
      reads(job.packets, job.num_packets * job.layout.end),
      writes(job.out, 4 * job.shape.num_elements * (job.to_places ? job.num_packets : 1)),
      writes(job.state, sizeof(*job.state)),
      writes_parts(job.parts, job.num_packets),
      writes(job.rows, 16 * job.shape.num_blocks),
  };
  TagcDecodeJob translated = job;
  const Translate translate(gpu_.memory());
  translate(translated.context);
  translate(translated.packets);
  translate(translated.out);
  translate(translated.state);
  translate(translated.parts);
  translate(translated.rows);
  translate(translated.cells);
  translate(translated.slabs);
  gpu_.enqueue(stream, "decode tagc", uses, [this, translated] {
    OneThread executor;
    kernels::emulated::decode_tagc(executor, translated);
    show_fault();
  });
}

void EmulatedGpu::Launcher::encode(const NoneEncodeJob& job, Stream stream) {
  const std::vector<MemoryUse> uses = {
      reads_context(job.context),
      reads(job.piece),
      writes(job.packet, job.packet_bytes),
      writes_parts(job.parts),
  };
  NoneEncodeJob translated = job;
  const Translate translate(gpu_.memory());
  translate(translated.context);
  translate(translated.piece);
  translate(translated.packet);
  translate(translated.parts);
  gpu_.enqueue(stream, "encode none", uses, [translated] {
    OneThread executor;
    kernels::emulated::encode_none(executor, translated);
  });
}

void EmulatedGpu::Launcher::decode(const NoneDecodeJob& job, Stream stream) {
  const std::vector<MemoryUse> uses = {
      reads_context(job.context),
      reads(job.packets, job.num_packets * job.packet_bytes),
      writes(job.out),
      writes(job.state, sizeof(*job.state)),
      writes_parts(job.parts, job.num_packets),
  };
  NoneDecodeJob translated = job;
  const Translate translate(gpu_.memory());
  translate(translated.context);
  translate(translated.packets);
  translate(translated.out);
  translate(translated.state);
  translate(translated.parts);
  gpu_.enqueue(stream, "decode none", uses, [this, translated] {
    OneThread executor;
    kernels::emulated::decode_none(executor, translated);
    show_fault();
  });
}

void EmulatedGpu::Launcher::show_fault() {
  const std::lock_guard lock(mutex_);
  if (fault_of_host_.reported == 0) {
    fault_of_host_ = fault_;
  }
}

kernels::DeviceFault EmulatedGpu::Launcher::fault_seen_by_host() {
  const std::lock_guard lock(mutex_);
  return fault_of_host_;
}

kernels::DeviceCounts EmulatedGpu::Launcher::read_counts() {
  return *static_cast<const kernels::DeviceCounts*>(gpu_.memory().behind(counts_.get()));
}

void EmulatedGpu::Launcher::end_step(bool skipped, Stream stream) {
  auto* behind = static_cast<kernels::DeviceCounts*>(gpu_.memory().behind(counts_.get()));
  gpu_.enqueue(stream, "end of step", {writes(counts_.get(), sizeof(*behind))}, [behind, skipped] {
    OneThread executor;
    kernels::emulated::end_step(executor, behind, skipped);
  });
}

}  // namespace isthmus::test
