// Speed of the codecs on one core, beside memcpy and the exact fp32 sum of the same number of bytes.
//
// Every figure is of *source* bytes: those of the fp32 piece, whatever the packet's size. Times are the thread's CPU
// time, and each iteration also times a memcpy of the piece, so that "of_memcpy" (memcpy's median time / this one's)
// holds on a machine that is shared. Every benchmark verifies what it computed; if one is wrong, the program fails.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned_memory.h"
#include "isthmus/codec.h"
#include "isthmus/error.h"
#include "kernels/block/instruction_set.h"

namespace isthmus {
namespace {

bool something_is_wrong = false;

constexpr int64_t kPieceElements = int64_t{64} << 18;  // 64 MiB

struct AlignedFloats {
  explicit AlignedFloats(int64_t num) : memory(allocate_aligned(num * 4)), num_elements(num) {
    std::memset(memory.get(), 0, num * 4);
  }
  float* data() { return reinterpret_cast<float*>(memory.get()); }
  Buffer buffer() { return {memory.get(), num_elements, DataType::kFloat32}; }

  AlignedMemory memory;
  int64_t num_elements;
};

// Gaussian, one element in a hundred 30 times as large.
AlignedFloats make_piece(int64_t num_elements) {
  AlignedFloats piece(num_elements);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < num_elements; ++i) {
    piece.data()[i] = normal(random) * (random() % 100 == 0 ? 30.0F : 1.0F);
  }
  return piece;
}

AlignedFloats& the_piece() {
  static AlignedFloats piece = make_piece(kPieceElements);
  return piece;
}

double thread_cpu_s() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of(const auto& work) {
  const double start = thread_cpu_s();
  work();
  return thread_cpu_s() - start;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Times work() and, beside it, memcpy of the piece.
void measure(benchmark::State& state, AlignedFloats& piece, const auto& work) {
  AlignedFloats copy(piece.num_elements);
  std::vector<double> work_s;
  std::vector<double> memcpy_s;
  for (auto iteration : state) {
    static_cast<void>(iteration);
    memcpy_s.push_back(seconds_of([&] {
      std::memcpy(copy.data(), piece.data(), piece.buffer().bytes());
      benchmark::ClobberMemory();
    }));
    work_s.push_back(seconds_of(work));
    state.SetIterationTime(work_s.back());
  }
  state.counters["GB/s"] = static_cast<double>(piece.buffer().bytes()) / median(work_s) / 1e9;
  state.counters["of_memcpy"] = median(memcpy_s) / median(work_s);
}

void verify(benchmark::State& state, bool right) {
  if (!right) {
    something_is_wrong = true;
    state.SkipWithError("WRONG RESULT");
  }
}

void bench_memcpy(benchmark::State& state) {
  AlignedFloats& piece = the_piece();
  AlignedFloats out(piece.num_elements);
  measure(state, piece, [&] {
    std::memcpy(out.data(), piece.data(), piece.buffer().bytes());
    benchmark::ClobberMemory();
  });
  verify(state, std::memcmp(out.data(), piece.data(), piece.buffer().bytes()) == 0);
}

void bench_sum(benchmark::State& state) {
  AlignedFloats& piece = the_piece();
  AlignedFloats out(piece.num_elements);
  int64_t runs = 0;
  measure(state, piece, [&] {
    accumulate(piece.buffer(), out.buffer());
    ++runs;
  });
  AlignedFloats expected(piece.num_elements);
  for (; runs > 0; --runs) {
    for (int64_t i = 0; i < piece.num_elements; ++i) {
      expected.data()[i] += piece.data()[i];
    }
  }
  verify(state, std::memcmp(out.data(), expected.data(), piece.buffer().bytes()) == 0);
}

// What is measured: a codec with its options, and the relative squared error that it may make.
struct Case {
  std::string name;
  Options options;
  double most_error = 0;
};

std::vector<Case> all_cases() {
  using Pairs = std::vector<std::pair<int, double>>;
  std::vector<Case> cases;
  const auto add = [&cases](const std::string& name, const char* codec, double most_error = 0) -> Options& {
    Case& of = cases.emplace_back(Case{name, Options(), most_error});
    of.options.codec = codec;
    return of.options;
  };
  for (const auto& [bits, most_error] : Pairs{{8, .0001}, {4, .013}, {3, .04}, {2, .13}, {1, .4}}) {
    Options& options = add(detail::concatenate("quant/", bits, "bit"), "quant", most_error);
    options.bits = bits;
    options.error_feedback = ErrorFeedback::kOff;
  }
  add("quant/4bit-feedback", "quant", 1e-12).error_feedback = ErrorFeedback::kOn;
  add("none", "none");
  for (const auto& [ratio, sparsity] : Pairs{{2, .8}, {4, .9}, {10, .9875}}) {
    Options& options = add(detail::concatenate("tagc/", ratio, "x"), "tagc");
    options.ratio = ratio;
    options.sparsity = sparsity;
  }
  for (const char* cell_type : {"fp32", "bf16", "fp16", "int8"}) {  // rows by load
    Options& options = add(detail::concatenate("tagc/load/", cell_type), "tagc");
    options.ratio = 0;
    options.sparsity = .9875;
    options.cell_type = cell_type;
  }
  return cases;
}

// A codec with its packet, and a residual that a few steps have filled.
struct Coder {
  Coder(const Case& of, AlignedFloats& source)
      : codec(make_codec(of.options.codec, of.options, DataType::kFloat32, 1)),
        most_error(of.most_error),
        piece(source),
        residual(codec->keeps_residual() ? source.num_elements : 0),
        packet_bytes(codec->packet_bytes(source.num_elements)),
        packet(allocate_aligned(packet_bytes)) {
    for (int step = 0; step < 3; ++step) {
      encode();
    }
  }

  Buffer packet_buffer() { return {packet.get(), packet_bytes, DataType::kByte}; }
  void encode() {
    ++context.step;
    counts = codec->encode(piece.buffer(), residual.buffer(), packet_buffer(), context, {});
  }
  void decode_sum(AlignedFloats& out) { codec->decode_sum(packet_buffer(), 1, out.buffer(), context, {}); }

  // One more step: what arrives and what stays must be piece + residual, but for the error that the codec may make,
  // and enough must arrive.
  bool is_right() {
    AlignedFloats sum(piece.num_elements);
    std::memcpy(sum.data(), piece.data(), piece.buffer().bytes());
    for (int64_t i = 0; i < residual.num_elements; ++i) {
      sum.data()[i] += residual.data()[i];
    }
    encode();
    AlignedFloats arrived(piece.num_elements);
    decode_sum(arrived);
    double error = 0;
    double energy = 0;
    for (int64_t i = 0; i < piece.num_elements; ++i) {
      const double stays = residual.num_elements == 0 ? 0 : residual.data()[i];
      const double all = sum.data()[i];
      const double lost = all - (static_cast<double>(arrived.data()[i]) + stays);
      error += lost * lost;
      energy += all * all;
    }
    return counts.kept_elements > 0 && error <= most_error * energy;
  }

  std::unique_ptr<HostCodec> codec;
  double most_error;
  AlignedFloats& piece;
  AlignedFloats residual;
  int64_t packet_bytes;
  AlignedMemory packet;
  PacketContext context;
  CodecCounts counts;
};

void describe(benchmark::State& state, const Coder& coder) {
  const auto elements = static_cast<double>(coder.piece.num_elements);
  state.counters["bits"] = 8 * static_cast<double>(coder.packet_bytes) / elements;
  state.counters["held_back"] =
      static_cast<double>(coder.counts.held_back_elements) /
      std::max(1.0, static_cast<double>(coder.counts.held_back_elements + coder.counts.kept_elements));
}

void bench_encode(benchmark::State& state, const Case& of) {
  Coder coder(of, the_piece());
  measure(state, coder.piece, [&] { coder.encode(); });
  describe(state, coder);
  verify(state, coder.is_right());
}

void bench_decode(benchmark::State& state, const Case& of) {
  Coder coder(of, the_piece());
  AlignedFloats out(coder.piece.num_elements);
  measure(state, coder.piece, [&] { coder.decode_sum(out); });
  describe(state, coder);
  verify(state, coder.is_right());
}

void register_all() {
  const auto add = [](const std::string& name, auto... arguments) {
    benchmark::RegisterBenchmark((name + "/64MiB").c_str(), arguments...)
        ->Iterations(11)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  add("memcpy", bench_memcpy);
  add("exact_sum", bench_sum);
  for (const Case& of : all_cases()) {
    add(of.name + "/encode", bench_encode, of);
    add(of.name + "/decode", bench_decode, of);
  }
}

// --instruction_set=baseline|AVX2|AVX-512 instead of the best that the machine has.
bool choose_instruction_set(int& argc, char** argv) {
  const std::string flag = "--instruction_set=";
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]).rfind(flag, 0) != 0) {
      continue;
    }
    for (const kernels::InstructionSet available : kernels::available_instruction_sets()) {
      if (argv[i] + flag.size() == std::string(kernels::to_string(available))) {
        kernels::set_instruction_set(available);
        std::copy(argv + i + 1, argv + argc, argv + i);
        --argc;
        return true;
      }
    }
    return false;
  }
  return true;
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) {
  if (!isthmus::choose_instruction_set(argc, argv)) {
    std::fprintf(stderr, "--instruction_set names none that this machine has\n");
    return 2;
  }
  benchmark::AddCustomContext("instruction_set", isthmus::kernels::to_string(isthmus::kernels::instruction_set()));
  isthmus::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return isthmus::something_is_wrong ? 1 : 0;
}
