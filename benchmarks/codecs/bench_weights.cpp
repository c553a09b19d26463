// Differences of weights, by the coder that gathers and updates use: of bfloat16, after one step at a learning rate.
#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "benchmarks/codecs/measure.h"
#include "kernels/weights/weight_coder.h"

namespace isthmus::bench {
namespace {

constexpr int64_t kMib = 4;
constexpr int64_t kElements = kMib << 19;

// A shard before and after a step of about `rate`. Values as they are where training begins: standard deviation .02.
struct Step {
  explicit Step(float rate) : before(kElements, DataType::kBFloat16), after(kElements, DataType::kBFloat16) {
    Array master(kElements, DataType::kFloat32);
    auto* const values = master.buffer().as<float>();
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::generate_n(values, kElements, [&] { return .02F * normal(random); });
    convert(master.buffer(), before.buffer());
    std::for_each_n(values, kElements, [&](float& value) { value += rate * normal(random); });
    convert(master.buffer(), after.buffer());
  }

  Array before;
  Array after;
};

const Step& step_of(float rate) {
  static float last_rate = 0;
  static std::unique_ptr<Step> last;
  if (rate != last_rate) {
    last = std::make_unique<Step>(rate);
    last_rate = rate;
  }
  return *last;
}

struct Coder {
  explicit Coder(const Step& the_step)
      : step(the_step),
        sent(weight_sent_bytes(step.after.buffer()), DataType::kByte),
        row(weight_row_bytes(sent.num_elements), DataType::kByte),
        replica(kElements, DataType::kBFloat16) {
    encode();
    restore();
    decode();
    bits = 8.0 * static_cast<double>(header().packet_bytes) / kElements;
  }

  const WeightHeader& header() const { return *sent.buffer().as<WeightHeader>(); }
  void encode() {
    WeightHeader header;
    header.dtype = DataType::kBFloat16;
    header.num_elements = kElements;
    header.has_replica = 1;
    coder->encode({header, step.before.buffer(), step.after.buffer(), {}, sent.buffer()}, {});
    const auto packet_bytes = static_cast<int64_t>(this->header().packet_bytes);
    std::memcpy(row.memory.get(), sent.memory.get() + sizeof(WeightHeader), static_cast<size_t>(packet_bytes));
  }
  void restore() {
    std::memcpy(replica.memory.get(), step.before.memory.get(), static_cast<size_t>(replica.buffer().bytes()));
  }
  // As a rank that is none of the senders.
  void decode() {
    coder->decode(
        {sent.buffer().slice(0, sizeof(WeightHeader)), 1, 1, row.buffer(), replica.buffer(), replica.buffer()}, {});
  }

  const std::shared_ptr<Device> host = make_host_device();
  const std::unique_ptr<WeightCoder> coder = make_weight_coder(*host);
  const Step& step;
  Array sent;
  Array row;
  Array replica;
  double bits = 0;
};

void bench_encode(benchmark::State& state, float rate) {
  Coder coder(step_of(rate));
  measure(state, coder.step.after.buffer(), [&] { coder.encode(); });
  state.counters["bits"] = coder.bits;
  coder.restore();
  coder.decode();
  verify(state, coder.replica == coder.step.after);
}

void bench_decode(benchmark::State& state, float rate) {
  Coder coder(step_of(rate));
  measure(
      state, coder.step.after.buffer(), [&] { coder.decode(); }, [&] { coder.restore(); });
  state.counters["bits"] = coder.bits;
  verify(state, coder.replica == coder.step.after);
}

}  // namespace

void register_weights() {
  for (const char* rate : {"1e-6", "1e-5", "1e-4", "1e-3"}) {
    add_benchmark(std::string("weights/") + rate + "/encode", kMib, bench_encode, std::stof(rate));
    add_benchmark(std::string("weights/") + rate + "/decode", kMib, bench_decode, std::stof(rate));
  }
}

}  // namespace isthmus::bench
