// Codecs on a GPU against the CPU's: packets, residuals and sums, bit for bit; damage; a captured graph; speed beside a
// copy. Needs no test framework. Prints a line for each check; exit status 1 if one fails, 77 if there is no GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "../cpp/tagc_data.h"
#include "codec/device_fault.h"
#include "codec/none.h"
#include "codec/none_device.h"
#include "codec/tagc.h"
#include "codec/tagc_device.h"
#include "device_memory.h"
#include "isthmus/error.h"
#include "kernels/cuda_codecs.h"
#include "scratch.h"

namespace isthmus::gpu {
namespace {

constexpr int kSkipped = 77;
constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7};

int failures = 0;

void expect(bool condition, const std::string& what) {
  std::printf("%s %s\n", condition ? "ok    " : "FAILED", what.c_str());
  failures += condition ? 0 : 1;
}

ConstBuffer view(const std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
}
Buffer view(std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size()), DataType::kFloat32};
}

// Bit for bit, but any NaN equals any other.
bool equal(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::memcmp(&x, &y, sizeof(x)) == 0 || (std::isnan(x) && std::isnan(y));
  });
}

Options options_of(double ratio, double sparsity, int64_t block_elements = 0) {
  Options options;
  options.ratio = ratio;
  options.sparsity = sparsity;
  options.block_elements = block_elements;
  return options;
}

std::vector<uint8_t> encode_on_cpu(const Options& options, const std::vector<float>& piece,
                                   std::vector<float>& residual, PacketContext context) {
  TagcCodec codec(options);
  const int64_t packet_bytes = codec.packet_bytes(static_cast<int64_t>(piece.size()));
  const AlignedMemory packet = allocate_aligned(packet_bytes);
  codec.encode(view(piece), view(residual), {packet.get(), packet_bytes, DataType::kByte}, context, {});
  const auto* bytes = reinterpret_cast<const uint8_t*>(packet.get());
  return {bytes, bytes + packet_bytes};
}

// Everything that one unit needs on the GPU.
struct Unit {
  Unit(const Options& options, const std::vector<float>& first_piece, const std::vector<float>& first_residual)
      : codec(options),
        num_elements(static_cast<int64_t>(first_piece.size())),
        piece(first_piece),
        residual(first_residual),
        packet(codec.packet_bytes(num_elements)),
        encode_scratch(codec.encode_scratch_bytes(num_elements)),
        decode_scratch(codec.decode_scratch_bytes(num_elements, 1)),
        out(std::vector<float>(num_elements, .125F)),
        context(std::vector<kernels::DeviceContext>{{kContext.unit_hash, kContext.step}}),
        counts(std::vector<kernels::DeviceCounts>(1)),
        fault(std::vector<kernels::DeviceFault>(1)) {}

  void encode(cudaStream_t stream) {
    kernels::cuda_encode_tagc(
        codec.encode_job(piece.floats(), residual.floats(), packet.bytes(), context.as<kernels::DeviceContext>(),
                         counts.as<kernels::DeviceCounts>(), encode_scratch.bytes()),
        stream);
  }
  void decode(cudaStream_t stream) {
    kernels::cuda_decode_tagc(codec.decode_job(packet.bytes(), 1, out.floats(), context.as<kernels::DeviceContext>(),
                                               fault.as<kernels::DeviceFault>(), decode_scratch.bytes()),
                              stream);
  }
  void next_step(cudaStream_t stream) { kernels::cuda_next_step(context.as<kernels::DeviceContext>(), stream); }
  kernels::DeviceFault reported() const { return fault.copy<kernels::DeviceFault>()[0]; }

  TagcDevice codec;
  int64_t num_elements;
  DeviceMemory piece;
  DeviceMemory residual;
  DeviceMemory packet;
  DeviceMemory encode_scratch;
  DeviceMemory decode_scratch;
  DeviceMemory out;
  DeviceMemory context;
  DeviceMemory counts;
  DeviceMemory fault;
};

void check_tagc(const Options& options, const std::string& name, const std::vector<float>& piece) {
  std::vector<float> residual = make_piece(Data::kHeavyTail, static_cast<int64_t>(piece.size()), 12);
  Unit unit(options, piece, residual);
  unit.encode(nullptr);
  unit.decode(nullptr);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const std::vector<uint8_t> packet = encode_on_cpu(options, piece, residual, kContext);
  std::vector<float> out(piece.size(), .125F);
  const AlignedMemory aligned = allocate_aligned(static_cast<int64_t>(packet.size()));
  std::memcpy(aligned.get(), packet.data(), packet.size());
  TagcCodec(options).decode_sum({aligned.get(), static_cast<int64_t>(packet.size()), DataType::kByte}, 1, view(out),
                                kContext, {});
  expect(unit.packet.copy<uint8_t>() == packet && equal(unit.residual.copy<float>(), residual) &&
             equal(unit.out.copy<float>(), out) && unit.reported().code == kernels::DeviceFault::kNone,
         "tagc, " + name + ", " + std::to_string(piece.size()) + " elements, ratio " + std::to_string(options.ratio) +
             ", sparsity " + std::to_string(options.sparsity));
}

void check_tagc_on_all_data() {
  for (const int64_t num_elements : {0, 1, 63, 64, 65, 1023, 1024, 1025, 12345, (1 << 20) + 1, 10000003}) {
    check_tagc(options_of(10, .9875), "heavy tail", make_piece(Data::kHeavyTail, num_elements, 1));
    check_tagc(options_of(2, .8), "heavy tail", make_piece(Data::kHeavyTail, num_elements, 1));
  }
  for (const Data data : all_data()) {
    check_tagc(options_of(4, .9), to_string(data), make_piece(data, 300001, 2));
    check_tagc(options_of(10, .5), to_string(data), make_piece(data, 300001, 2));
  }
  std::vector<float> piece = make_piece(Data::kHeavyTail, 300001, 3);
  piece[5] = std::numeric_limits<float>::quiet_NaN();
  piece[200000] = std::numeric_limits<float>::infinity();
  check_tagc(options_of(10, .9875), "NaN and Inf", piece);
  check_tagc(options_of(1, .999, 64), "tables in scratch memory", make_piece(Data::kHeavyTail, 64 * 16385 + 1, 4));
}

void check_damage() {
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 50000, 5);
  Unit unit(options_of(4, .9), piece, std::vector<float>(piece.size()));
  unit.encode(nullptr);
  std::vector<uint8_t> packet = unit.packet.copy<uint8_t>();
  packet[packet.size() / 2] ^= 4;
  check(cudaMemcpy(unit.packet.as<uint8_t>(), packet.data(), packet.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  unit.decode(nullptr);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  std::string message;
  try {
    throw_if_reported(unit.reported());
  } catch (const PacketError& error) {
    message = error.what();
  }
  expect(message.find("checksum") != std::string::npos, "damage is reported: " + message);
}

// Three steps of one captured graph: each encodes another step.
void check_graph() {
  const Options options = options_of(10, .9875);
  const std::vector<float> piece = make_piece(Data::kHeavyTail, 400000, 6);
  std::vector<float> residual(piece.size());
  Unit unit(options, piece, residual);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  unit.encode(stream);
  unit.decode(stream);
  unit.next_step(stream);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  bool all_equal = true;
  for (uint64_t step = kContext.step; step < kContext.step + 3; ++step) {
    check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const std::vector<uint8_t> packet = encode_on_cpu(options, piece, residual, {kContext.unit_hash, step});
    all_equal = all_equal && unit.packet.copy<uint8_t>() == packet && equal(unit.residual.copy<float>(), residual);
  }
  expect(all_equal && unit.reported().code == kernels::DeviceFault::kNone, "three replays of a captured graph");
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

void check_none() {
  for (const int64_t num_elements : {0, 1, 3, 1024, 1025, 3000001}) {
    for (const DataType wire : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
      const std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 7);
      NoneCodec cpu(wire, 2);
      std::vector<uint64_t> expected(static_cast<size_t>(cpu.packet_bytes(num_elements)) / 8);
      const Buffer packet = {expected.data(), static_cast<int64_t>(8 * expected.size()), DataType::kByte};
      cpu.encode(view(piece), {}, packet, kContext, {});
      std::vector<float> expected_out(piece.size(), 1.0F);
      cpu.decode_sum(packet, 1, view(expected_out), kContext, {});

      const NoneDevice codec(wire, 2);
      const DeviceMemory on_device(piece);
      const DeviceMemory packet_on_device(packet.num_elements);
      const DeviceMemory scratch(std::max(NoneDevice::encode_scratch_bytes(), NoneDevice::decode_scratch_bytes(1)));
      const DeviceMemory context(std::vector<kernels::DeviceContext>{{kContext.unit_hash, kContext.step}});
      const DeviceMemory fault{std::vector<kernels::DeviceFault>(1)};
      const DeviceMemory out{std::vector<float>(piece.size(), 1.0F)};
      kernels::cuda_encode_none(codec.encode_job(on_device.floats(), packet_on_device.bytes(),
                                                 context.as<kernels::DeviceContext>(), scratch.bytes()),
                                nullptr);
      kernels::cuda_decode_none(
          codec.decode_job(packet_on_device.bytes(), 1, out.floats(), context.as<kernels::DeviceContext>(),
                           fault.as<kernels::DeviceFault>(), scratch.bytes()),
          nullptr);
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      expect(packet_on_device.copy<uint64_t>() == expected && equal(out.copy<float>(), expected_out) &&
                 fault.copy<kernels::DeviceFault>()[0].code == kernels::DeviceFault::kNone,
             std::string("none, ") + to_string(wire) + ", " + std::to_string(num_elements) + " elements");
    }
  }
}

// The best of several runs, in milliseconds.
template <typename Run>
float time_of(Run run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  float best = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 20; ++i) {
    check(cudaEventRecord(begin), "cudaEventRecord");
    run();
    check(cudaEventRecord(end), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float elapsed = 0;
    check(cudaEventElapsedTime(&elapsed, begin, end), "cudaEventElapsedTime");
    best = std::min(best, elapsed);
  }
  check(cudaEventDestroy(begin), "cudaEventDestroy");
  check(cudaEventDestroy(end), "cudaEventDestroy");
  return best;
}

void print_speed(int64_t num_bytes) {
  const std::vector<float> piece = make_piece(Data::kHeavyTail, num_bytes / 4, 8);
  const DeviceMemory from(piece);
  const DeviceMemory to(num_bytes);
  const float copy = time_of([&] {
    check(cudaMemcpyAsync(to.as<void>(), from.as<void>(), static_cast<size_t>(num_bytes), cudaMemcpyDeviceToDevice),
          "cudaMemcpyAsync");
  });
  for (const auto& [ratio, sparsity] : {std::pair{2.0, .8}, {4.0, .9}, {10.0, .9875}}) {
    Unit unit(options_of(ratio, sparsity), piece, std::vector<float>(piece.size()));
    const float encode = time_of([&] { unit.encode(nullptr); });
    const float decode = time_of([&] { unit.decode(nullptr); });
    expect(unit.reported().code == kernels::DeviceFault::kNone, "timed packets decode");
    const auto speed = [&](float milliseconds) { return static_cast<double>(num_bytes) / milliseconds / 1e6; };
    std::printf("       %lld MiB, tagc %gx: encode %.0f GB/s of source, decode %.0f; copy %.0f\n",
                static_cast<long long>(num_bytes >> 20), ratio, speed(encode), speed(decode), speed(copy));
  }
}

int run() {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::puts("skipped: no GPU");
    return kSkipped;
  }
  check_none();
  check_tagc_on_all_data();
  check_damage();
  check_graph();
  for (const int64_t mebibytes : {1, 16, 64, 256}) {
    print_speed(mebibytes << 20);
  }
  std::printf("%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace isthmus::gpu

int main() {
  try {
    return isthmus::gpu::run();
  } catch (const std::exception& error) {
    std::printf("FAILED %s\n", error.what());
    return 1;
  }
}
