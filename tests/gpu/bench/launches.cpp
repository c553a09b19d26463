// What the host does until a call returns. The tiers are copies on the device, so that NCCL's own launches are not in
// it: tests/gpu/worlds/launch_overhead.py has those.
#include <memory>
#include <string>

#include "cuda/cuda_device.h"
#include "isthmus/codec_type.h"
#include "isthmus/communicator.h"
#include "tests/cpp/codec/pieces.h"
#include "tests/gpu/bench/benchmarks.h"
#include "tests/gpu/support/coding.h"
#include "tests/gpu/support/cuda_gpu.h"

namespace isthmus::gpu {
namespace {

constexpr int kRepetitions = 200;
constexpr double kTargetUs = 40;
constexpr int64_t kElements = 1 << 18;

Figures figures_of(const Times& times) {
  return {{"host us", times.median},
          {"lower quartile", times.lower},
          {"upper quartile", times.upper},
          {"target us", kTargetUs}};
}

class DoneHandle final : public Handle {
 public:
  void wait(Stream /*stream*/) override {}
};

// Rank 0 of two that send each other the same: one copy takes the place of each operation.
class CopyTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  SumType sum_type(DataType in) const override { return {in}; }
  HandlePtr reduce_scatter(ConstBuffer in, Buffer out, Stream stream) override { return copy(in, out, stream); }
  HandlePtr all_to_all(ConstBuffer in, Buffer out, Stream stream) override { return copy(in, out, stream); }
  HandlePtr all_gather(ConstBuffer in, Buffer out, Stream stream) override {
    return copy(in, out.slice(in.num_elements, in.num_elements), stream);
  }
  HandlePtr all_reduce(Buffer /*data*/, ReduceOp /*op*/, Stream /*stream*/) override {
    return std::make_unique<DoneHandle>();
  }
  Traffic traffic() const override { return {}; }
  void abort() override {}

 private:
  static HandlePtr copy(ConstBuffer in, Buffer out, Stream stream) {
    check_cuda(cudaMemcpyAsync(out.data, in.data, static_cast<size_t>(out.bytes()), cudaMemcpyDeviceToDevice,
                               static_cast<cudaStream_t>(stream.handle)),
               "cudaMemcpyAsync");
    return std::make_unique<DoneHandle>();
  }
};

void bench_codec(Checks& checks, Timer& timer, const CodingShape& shape) {
  const std::unique_ptr<Gpu> gpu = make_cuda_gpu();
  const Stream stream = {timer.stream()};
  DeviceCoding coding(gpu->device(), shape, kElements);
  coding.piece().set(HostArray(make_piece(Data::kHeavyTail, kElements, 8), shape.piece).view());
  coding.set_context(kContext, stream);
  checks.measure("launches of encode, " + shape.name(),
                 [&] { return figures_of(timer.host_us(kRepetitions, [&] { coding.encode(0, stream); })); });
  checks.measure("launches of decode, " + shape.name(),
                 [&] { return figures_of(timer.host_us(kRepetitions, [&] { coding.decode(stream); })); });
}

void bench_path(Checks& checks, Timer& timer, const std::string& codec, DataType dtype) {
  Options options;
  options.codec = codec;
  options.min_elements = 0;
  const auto device = std::make_shared<CudaDevice>(0);
  Communicator communicator(NodeMap::parse("2x2", 4), 0,
                            {std::make_shared<CopyTransport>(), std::make_shared<CopyTransport>(), nullptr}, options,
                            device);
  const HostArray values(make_piece(Data::kHeavyTail, kElements, 8), dtype);
  const DeviceArray gradient(*device, values.view());
  const DeviceArray shard(*device, kElements / 4, dtype);
  const UnitKey unit = {.name = "timed", .num_elements = kElements, .dtype = dtype};
  checks.measure(std::string("launches of a whole reduce-scatter, codec ") + codec + ", " + to_string(dtype), [&] {
    const Times times = timer.host_us(kRepetitions, [&] {
      communicator.reduce_scatter(gradient.buffer(), shard.buffer(), {unit, .25}, {timer.stream()});
    });
    communicator.throw_if_faulted();
    return figures_of(times);
  });
}

}  // namespace

void bench_launches(Checks& checks, Timer& timer) {
  bench_codec(checks, timer, {.codec = "none", .options = {}});
  bench_codec(checks, timer, {.codec = "tagc", .options = tagc_options(10, .9875)});
  bench_codec(checks, timer, {.codec = "quant", .options = quant_options(4)});
  for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    for (const std::string& codec : codec_names()) {
      bench_path(checks, timer, codec, dtype);
    }
  }
}

}  // namespace isthmus::gpu
