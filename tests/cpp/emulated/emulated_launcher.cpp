#include "tests/cpp/emulated/emulated_launcher.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#define ISTHMUS_KERNEL_NAMESPACE emulated

#include "codec/device_fault.h"
#include "codec/squared_error.h"
#include "kernels/none/sequence.h"
#include "kernels/quant/sequence.h"
#include "kernels/sparse/sequence.h"
#include "kernels/tagc/sequence.h"
#include "kernels/values/sequence.h"
#include "tests/cpp/support/one_thread.h"

namespace isthmus::test {
namespace {

using kernels::NoneDecodeJob;
using kernels::NoneEncodeJob;
using kernels::QuantDecodeJob;
using kernels::QuantEncodeJob;
using kernels::SparseDecodeJob;
using kernels::SparseEncodeJob;
using kernels::TagcDecodeJob;
using kernels::TagcEncodeJob;

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
  translate(translated.peaks);
  translate(translated.parts);
  translate(translated.rows);
  translate(translated.slabs);
  gpu_.enqueue(stream, "encode tagc", uses, [translated] {
    OneThreadExecutor executor;
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
    OneThreadExecutor executor;
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
    OneThreadExecutor executor;
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
    OneThreadExecutor executor;
    kernels::emulated::decode_none(executor, translated);
    show_fault();
  });
}

template <typename Job, typename Encode>
void EmulatedGpu::Launcher::encode_blocks(const char* what, const Job& job, Stream stream, Encode encode) {
  const std::vector<MemoryUse> uses = {
      reads_context(job.context),
      reads(job.piece),
      writes(job.residual, job.residual == nullptr ? 0 : 4 * job.shape.num_elements),
      writes(job.packet, job.layout.end),
      writes(job.arrived, sizeof(*job.arrived)),
      writes_parts(job.parts),
      adds_to(job.counts, sizeof(*job.counts)),
  };
  Job translated = job;
  const Translate translate(gpu_.memory());
  translate(translated.context);
  translate(translated.piece);
  translate(translated.residual);
  translate(translated.packet);
  translate(translated.counts);
  translate(translated.arrived);
  translate(translated.parts);
  gpu_.enqueue(stream, what, uses, [translated, encode] {
    OneThreadExecutor executor;
    encode(executor, translated);
  });
}

template <typename Job, typename Decode>
void EmulatedGpu::Launcher::decode_blocks(const char* what, const Job& job, Stream stream, Decode decode) {
  const std::vector<MemoryUse> uses = {
      reads_context(job.context),
      reads(job.packets, job.num_packets * job.layout.end),
      writes(job.out, 4 * job.shape.num_elements * (job.to_places ? job.num_packets : 1)),
      writes(job.state, sizeof(*job.state)),
      writes_parts(job.parts, job.num_packets),
  };
  Job translated = job;
  const Translate translate(gpu_.memory());
  translate(translated.context);
  translate(translated.packets);
  translate(translated.out);
  translate(translated.state);
  translate(translated.parts);
  gpu_.enqueue(stream, what, uses, [this, translated, decode] {
    OneThreadExecutor executor;
    decode(executor, translated);
    show_fault();
  });
}

void EmulatedGpu::Launcher::encode(const QuantEncodeJob& job, Stream stream) {
  encode_blocks("encode quant", job, stream,
                [](auto& executor, const auto& each) { kernels::emulated::encode_quant(executor, each); });
}

void EmulatedGpu::Launcher::decode(const QuantDecodeJob& job, Stream stream) {
  decode_blocks("decode quant", job, stream,
                [](auto& executor, const auto& each) { kernels::emulated::decode_quant(executor, each); });
}

void EmulatedGpu::Launcher::encode(const SparseEncodeJob& job, Stream stream) {
  encode_blocks("encode sparse", job, stream,
                [](auto& executor, const auto& each) { kernels::emulated::encode_sparse(executor, each); });
}

void EmulatedGpu::Launcher::decode(const SparseDecodeJob& job, Stream stream) {
  decode_blocks("decode sparse", job, stream,
                [](auto& executor, const auto& each) { kernels::emulated::decode_sparse(executor, each); });
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
    OneThreadExecutor executor;
    kernels::emulated::end_step(executor, behind, skipped);
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
  gpu_.enqueue(stream, "squared error", uses, [translated, error] {
    OneThreadExecutor executor;
    kernels::emulated::add_squared_error(executor, translated);
  });
}

}  // namespace isthmus::test
