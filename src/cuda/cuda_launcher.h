// Who enqueues the passes of codecs on a GPU. Private to the source files that call CUDA's runtime.
#pragma once

#include <stdexcept>

#include "codec/device_codecs.h"
#include "cuda/cuda_calls.h"
#include "kernels/cuda/codecs.h"

namespace isthmus {

// Calls launch() with the device current.
template <typename Launch>
void launch_on(int ordinal, const Launch& launch) {
  const CurrentDevice current(ordinal);
  try {
    launch();
  } catch (const std::runtime_error& error) {
    throw Error(detail::concatenate("cuda:", ordinal, ": ", error.what()));
  }
}

// The first fault is in device memory, where kernels read it fast, and copied to where the host sees it.
class CudaLauncher final : public DeviceLauncher {
 public:
  CudaLauncher(int ordinal, kernels::DeviceFault* mapped_fault) : ordinal_(ordinal), mapped_fault_(mapped_fault) {}

  void encode(const kernels::TagcEncodeJob& job, Stream stream) override {
    launch_on(ordinal_, [&] { kernels::cuda_encode_tagc(job, stream.handle); });
  }
  void decode(const kernels::TagcDecodeJob& job, Stream stream) override {
    launch_on(ordinal_, [&] { kernels::cuda_decode_tagc(with_mapped_fault(job), stream.handle); });
  }
  void encode(const kernels::NoneEncodeJob& job, Stream stream) override {
    launch_on(ordinal_, [&] { kernels::cuda_encode_none(job, stream.handle); });
  }
  void decode(const kernels::NoneDecodeJob& job, Stream stream) override {
    launch_on(ordinal_, [&] { kernels::cuda_decode_none(with_mapped_fault(job), stream.handle); });
  }
  void encode(const kernels::QuantEncodeJob& job, Stream stream) override {
    launch_on(ordinal_, [&] { kernels::cuda_encode_quant(job, stream.handle); });
  }
  void decode(const kernels::QuantDecodeJob& job, Stream stream) override {
    launch_on(ordinal_, [&] { kernels::cuda_decode_quant(with_mapped_fault(job), stream.handle); });
  }
  void encode(const kernels::SparseEncodeJob& job, Stream stream) override {
    launch_on(ordinal_, [&] { kernels::cuda_encode_sparse(job, stream.handle); });
  }
  void decode(const kernels::SparseDecodeJob& job, Stream stream) override {
    launch_on(ordinal_, [&] { kernels::cuda_decode_sparse(with_mapped_fault(job), stream.handle); });
  }

 private:
  template <typename DecodeJob>
  DecodeJob with_mapped_fault(DecodeJob job) const {
    job.mapped_fault = mapped_fault_;
    return job;
  }

  const int ordinal_;
  kernels::DeviceFault* const mapped_fault_;
};

}  // namespace isthmus
