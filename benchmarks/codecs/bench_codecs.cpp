// Speed of the codecs on one core, beside memcpy and the exact fp32 sum of the same number of bytes: measure.h.
//
//   --instruction_set=baseline|AVX2|AVX-512  instead of the best that the machine has
//   --beside_baseline                        each also with the baseline set
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/codecs/measure.h"
#include "isthmus/codec.h"
#include "isthmus/error.h"

namespace isthmus::bench {
namespace {

struct AlignedFloats : Array {
  explicit AlignedFloats(int64_t num) : Array(num, DataType::kFloat32) {}
  float* data() { return buffer().as<float>(); }
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

AlignedFloats& piece_of(int64_t mib) {
  static std::map<int64_t, AlignedFloats> pieces;
  auto found = pieces.find(mib);
  if (found == pieces.end()) {
    found = pieces.emplace(mib, make_piece(mib << 18)).first;
  }
  return found->second;
}

void bench_memcpy(benchmark::State& state, int64_t mib) {
  AlignedFloats& piece = piece_of(mib);
  AlignedFloats out(piece.num_elements);
  measure(state, piece.buffer(), [&] {
    std::memcpy(out.data(), piece.data(), piece.buffer().bytes());
    benchmark::ClobberMemory();
  });
  verify(state, out == piece);
}

void bench_sum(benchmark::State& state, int64_t mib) {
  AlignedFloats& piece = piece_of(mib);
  AlignedFloats out(piece.num_elements);
  int64_t runs = 0;
  measure(state, piece.buffer(), [&] {
    accumulate(piece.buffer(), out.buffer());
    ++runs;
  });
  AlignedFloats expected(piece.num_elements);
  for (; runs > 0; --runs) {
    for (int64_t i = 0; i < piece.num_elements; ++i) {
      expected.data()[i] += piece.data()[i];
    }
  }
  verify(state, out == expected);
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

void bench_encode(benchmark::State& state, int64_t mib, const Case& of) {
  Coder coder(of, piece_of(mib));
  measure(state, coder.piece.buffer(), [&] { coder.encode(); });
  describe(state, coder);
  verify(state, coder.is_right());
}

void bench_decode(benchmark::State& state, int64_t mib, const Case& of) {
  Coder coder(of, piece_of(mib));
  AlignedFloats out(coder.piece.num_elements);
  measure(state, coder.piece.buffer(), [&] { coder.decode_sum(out); });
  describe(state, coder);
  verify(state, coder.is_right());
}

void register_all() {
  for (const int64_t mib : {64, 4}) {
    add_benchmark("memcpy", mib, bench_memcpy, mib);
    add_benchmark("exact_sum", mib, bench_sum, mib);
    for (const Case& of : all_cases()) {
      add_benchmark(of.name + "/encode", mib, bench_encode, mib, of);
      add_benchmark(of.name + "/decode", mib, bench_decode, mib, of);
    }
  }
}

// Takes the argument that begins with `flag` away, and returns what follows it.
std::optional<std::string> take(const std::string& flag, int& argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind(flag, 0) == 0) {
      std::copy(argv + i + 1, argv + argc, argv + i);
      --argc;
      return argument.substr(flag.size());
    }
  }
  return {};
}

// The set of that name, or the one in use.
kernels::InstructionSet find_set(const std::optional<std::string>& name) {
  for (const kernels::InstructionSet available : kernels::available_instruction_sets()) {
    if (name == kernels::to_string(available)) {
      return available;
    }
  }
  ISTHMUS_CHECK(Error, !name, "--instruction_set=", *name, ": this machine has none of that name");
  return kernels::instruction_set();
}

}  // namespace
}  // namespace isthmus::bench

int main(int argc, char** argv) try {
  using namespace isthmus;
  kernels::set_instruction_set(bench::find_set(bench::take("--instruction_set=", argc, argv)));
  bench::beside_baseline = bench::take("--beside_baseline", argc, argv).has_value();
  benchmark::AddCustomContext("instruction_set", kernels::to_string(kernels::instruction_set()));
  bench::register_all();
  bench::register_weights();
  bench::register_step();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return bench::something_is_wrong ? 1 : 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_codecs: %s\n", error.what());
  return 2;
}
