// Benchmarks of codecs on the first CUDA device: the speed of encoding and decoding beside a copy of as many bytes, in
// the same run; codec `quant` first. Exit status 77 where there is no device. Every figure is of source bytes: those of
// the piece in its own type, whatever the packet's size.
//
// The bound of each is the time that its fewest bytes take at the bandwidth of a copy of the piece, measured beside it:
// - encode `none`: the piece is read, the packet written; decode: the packet read, sums read and written;
// - `quant` likewise; with error feedback encoding reads and writes the residual, too;
// - encode `tagc`: piece and residual are read, residual and packet written;
// - decode to a shard, as a reduction does: packet and own piece are read, the shard is written in the piece's type;
// - decode `tagc`: the packet is read; for each element in it a sector of 32 bytes of the sums is read and
//   written.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/gpu/device/coding.h"
#include "tests/cpp/gpu/device/cuda_gpu.h"
#include "tests/cpp/gpu/device/tests.h"
#include "tests/gpu/bench/timing.h"

namespace isthmus::gpu {
namespace {

// What was measured, in the order in which it is shown.
using Figures = std::vector<std::pair<std::string, double>>;

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    result += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c < ' ' ? ' ' : c};
  }
  return result + '"';
}

// A line for tests/gpu/programs.py.
void tell(const std::string& name, const char* result, const std::string& detail, const Figures& figures) {
  std::printf("{\"check\": %s, \"result\": \"%s\", \"detail\": %s, \"figures\": {", quoted(name).c_str(), result,
              quoted(detail).c_str());
  const char* comma = "";
  for (const auto& [figure, value] : figures) {
    std::printf("%s%s: %.6g", comma, quoted(figure).c_str(), value);
    comma = ", ";
  }
  std::puts("}}");
  std::fflush(stdout);
}

// Returns whether nothing was wrong; where something is, `body` throws.
bool measure(const std::string& name, const std::function<Figures()>& body) {
  try {
    tell(name, "ok", "", body());
    return true;
  } catch (const std::exception& error) {
    tell(name, "failed", error.what(), {});
    return false;
  }
}

constexpr int64_t kMegabytes[] = {64, 256, 16, 1};
constexpr int64_t kLargestVerifiedBytes = int64_t{16} << 20;  // encoding more on the CPU, too, would take too long
constexpr double kTargetPercent = 70;
constexpr double kTargetSpeed = 1000;  // GB/s of bfloat16 source, for codecs without residual
constexpr double kSectorBytes = 32;

int repetitions_for(int64_t bytes) { return bytes <= (int64_t{16} << 20) ? 41 : 15; }

// Drawn once: the largest is 128 million elements.
const std::vector<float>& values() {
  static const std::vector<float> drawn = make_piece(Data::kHeavyTail, int64_t{256} << 18, 8);
  return drawn;
}

HostArray piece_of(int64_t num_elements, DataType dtype) {
  HostArray piece(num_elements, dtype);
  for (int64_t begin = 0; begin < num_elements;) {
    const int64_t count = std::min(num_elements - begin, static_cast<int64_t>(values().size()));
    convert({values().data(), count, DataType::kFloat32}, piece.buffer().slice(begin, count));
    begin += count;
  }
  return piece;
}

// Bytes a second of a copy, counting those read and those written.
double copy_bandwidth(Timer& timer, int64_t num_bytes) {
  void* from = nullptr;
  void* to = nullptr;
  const auto size = static_cast<size_t>(num_bytes);
  check_cuda(cudaMalloc(&from, size), "cudaMalloc");
  check_cuda(cudaMalloc(&to, size), "cudaMalloc");
  check_cuda(cudaMemset(from, 1, size), "cudaMemset");
  const Times times = timer.device_us(repetitions_for(num_bytes), [&] {
    check_cuda(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, timer.stream()), "cudaMemcpyAsync");
  });
  check_cuda(cudaFree(to), "cudaFree");
  check_cuda(cudaFree(from), "cudaFree");
  return 2e6 * static_cast<double>(num_bytes) / times.median;
}

Figures figures_of(const CodingShape& shape, const Times& times, double source_bytes, double moved_bytes,
                   double bandwidth) {
  const double bound = source_bytes / (moved_bytes / bandwidth);
  const double speed = 1e6 * source_bytes / times.median;
  Figures figures = {{"us", times.median},
                     {"lower quartile", times.lower},
                     {"upper quartile", times.upper},
                     {"GB/s of source", speed / 1e9},
                     {"copy GB/s, read and written", bandwidth / 1e9},
                     {"bound GB/s of source", bound / 1e9},
                     {"% of bound", 100 * speed / bound},
                     {"target %", kTargetPercent}};
  if (shape.codec == "none" && shape.piece == DataType::kBFloat16) {
    figures.emplace_back("target GB/s", kTargetSpeed);
  }
  return figures;
}

// The first packet is that of the CPU, and everything decodes.
void verify(DeviceCoding& coding, const CodingShape& shape, const HostArray& piece) {
  HostCoding on_host(shape, piece.num_elements());
  on_host.encode(piece.view(), 0, kContext);
  require(same_bytes(coding.packets().get().view(), on_host.packets().view()), "the packet is not that of the CPU");
}

double kept_elements(const CodingShape& shape, int64_t num_elements) {
  return (1 - shape.options.sparsity) * static_cast<double>(num_elements);
}

// Returns whether all was right.
bool bench_shape(Timer& timer, const CodingShape& shape, int64_t megabytes, double bandwidth) {
  const int64_t source_bytes = megabytes << 20;
  const int64_t num_elements = source_bytes / element_bytes(shape.piece);
  const std::string name = ", " + shape.name() + ", " + std::to_string(megabytes) + " MiB";
  const int repetitions = repetitions_for(source_bytes);
  const auto source = static_cast<double>(source_bytes);
  const std::unique_ptr<Gpu> gpu = make_gpu();
  const Stream stream = {timer.stream()};
  const HostArray piece = piece_of(num_elements, shape.piece);
  DeviceCoding coding(gpu->device(), shape, num_elements);
  coding.piece().set(piece.view());
  coding.set_context(kContext, stream);
  const auto packet = static_cast<double>(coding.packet_bytes());

  bool is_right = measure("encode" + name, [&] {
    coding.encode(stream);
    if (source_bytes <= kLargestVerifiedBytes) {
      verify(coding, shape, piece);
    }
    const double residual = 2.0 * static_cast<double>(coding.residual().buffer().bytes());  // read and written
    const Times times = timer.device_us(repetitions, [&] { coding.encode(stream); });
    return figures_of(shape, times, source, source + residual + packet, bandwidth);
  });
  is_right &= measure("decode" + name, [&] {
    const auto all_sums = 2.0 * static_cast<double>(coding.out().buffer().bytes());
    const double sums =
        shape.codec == "tagc" ? std::min(all_sums, 2 * kSectorBytes * kept_elements(shape, num_elements)) : all_sums;
    const Times times = timer.device_us(repetitions, [&] { coding.decode(stream); });
    gpu->synchronize();
    gpu->device().throw_if_faulted();
    return figures_of(shape, times, source, packet + sums, bandwidth);
  });
  is_right &= measure("decode to a shard" + name, [&] {
    const Times times = timer.device_us(repetitions, [&] { coding.decode_to_shard(stream); });
    gpu->synchronize();
    gpu->device().throw_if_faulted();
    return figures_of(shape, times, source, packet + 2 * source, bandwidth);
  });
  return is_right;
}

std::vector<CodingShape> shapes() {
  std::vector<CodingShape> all;
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat32, DataType::kFloat16}) {
    for (const int64_t bits : {4, 8, 2, 1}) {
      all.push_back({.codec = "quant", .options = quant_options(bits), .piece = dtype});
    }
    all.push_back({.codec = "quant", .options = quant_options(1, true), .piece = dtype});
    all.push_back({.codec = "none", .options = {}, .wire = dtype, .piece = dtype});
    for (const auto& [ratio, sparsity] : {std::pair{2.0, .8}, {4.0, .9}, {10.0, .9875}}) {
      all.push_back({.codec = "tagc", .options = tagc_options(ratio, sparsity), .piece = dtype});
    }
  }
  return all;
}

// What is not begun by `end` is not run. Returns whether all was right.
bool bench_codecs(Timer& timer, std::chrono::steady_clock::time_point end) {
  bool is_right = true;
  for (const int64_t megabytes : kMegabytes) {
    const double bandwidth = copy_bandwidth(timer, megabytes << 20);
    for (const CodingShape& shape : shapes()) {
      if (std::chrono::steady_clock::now() >= end) {
        tell("from " + shape.name() + ", " + std::to_string(megabytes) + " MiB on", "not run", "time was up", {});
        return is_right;
      }
      is_right &= bench_shape(timer, shape, megabytes, bandwidth);
    }
  }
  return is_right;
}

// Before whoever started this ends it (tests/gpu/steps.py).
std::chrono::steady_clock::time_point end_of_time() {
  using Clock = std::chrono::steady_clock;
  constexpr double kShare = 0.8;
  const char* const limit_s = std::getenv("GPU_STEP_LIMIT_S");
  if (limit_s == nullptr) {
    return Clock::time_point::max();
  }
  return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1e3 * kShare * std::atof(limit_s)));
}

}  // namespace
}  // namespace isthmus::gpu

int main() {
  const auto end = isthmus::gpu::end_of_time();
  return isthmus::gpu::main_on_cuda([&] {
    isthmus::gpu::Timer timer;
    return isthmus::gpu::bench_codecs(timer, end) ? 0 : 1;
  });
}
