// What a small step of two nodes of two ranks costs their processors beside the model: a gather of weights that moved,
// and a reduction of gradients. Ranks are threads, and no network is between them.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "benchmarks/codecs/measure.h"
#include "isthmus/communicator.h"
#include "tests/cpp/support/in_process.h"

namespace isthmus::bench {
namespace {

constexpr int64_t kMib = 1;  // of gradients
constexpr int64_t kElements = kMib << 18;
constexpr std::chrono::milliseconds kTimeout{120000};

Options options() {
  Options values;
  values.weights = WeightForm::kDelta;
  return values;
}

class World {
 public:
  World() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const Array master(kElements, DataType::kFloat32);
    auto* const values = master.buffer().as<float>();
    std::generate_n(values, kElements, [&] { return .02F * normal(random); });
    convert(master.buffer(), weights_[0].buffer());
    std::for_each_n(values, kElements, [&](float& value) { value += 1e-5F * normal(random); });
    convert(master.buffer(), weights_[1].buffer());
    std::generate_n(gradient_.buffer().as<float>(), kElements, [&] { return normal(random); });
    for (int rank = 0; rank < map_.world_size(); ++rank) {
      ranks_.push_back(std::make_unique<Rank>(map_, rank, hub_));
    }
  }

  ConstBuffer gradient() const { return gradient_.buffer(); }

  void step() {
    ++steps_;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < map_.world_size(); ++rank) {
      threads.emplace_back([this, rank] {
        try {
          step_of(rank);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
          failed_ = true;
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  // Weights arrive to the last bit, and gradients, which all ranks have alike, to a hundredth of their squares.
  bool is_right() const {
    const Array& expected = weights_[steps_ % 2];
    bool right = !failed_;
    for (const std::unique_ptr<Rank>& rank : ranks_) {
      double lost = 0;
      double energy = 0;
      const auto first = rank->number * rank->shard.num_elements;
      for (int64_t i = 0; i < rank->shard.num_elements; ++i) {
        const double sum = map_.world_size() * static_cast<double>(gradient_.buffer().as<float>()[first + i]);
        const double error = rank->shard.buffer().as<float>()[i] - sum;
        lost += error * error;
        energy += sum * sum;
      }
      right = right && rank->gathered == expected && lost < .01 * energy;
    }
    return right;
  }

 private:
  struct Rank {
    Rank(const NodeMap& map, int rank, InProcessHub& hub)
        : number(rank),
          communicator(map, rank, hub.tiers(map, rank), options()),
          gathered(kElements, DataType::kBFloat16),
          shard(kElements / map.world_size(), DataType::kFloat32) {}

    int number;
    Communicator communicator;
    UnitPtr weights = make_unit({"unit", kElements, DataType::kBFloat16, Collective::kAllGather});
    UnitPtr gradient = make_unit({"unit", kElements});
    Array gathered;
    Array shard;
  };

  void step_of(int number) {
    Rank& rank = *ranks_[number];
    const ConstBuffer weights = weights_[steps_ % 2].buffer();
    rank.communicator
        .gather_weights(weights.part(number, rank.shard.num_elements), rank.gathered.buffer(), rank.weights)
        ->finish();
    rank.communicator.reduce_scatter(gradient_.buffer(), rank.shard.buffer(), {rank.gradient});
  }

  const NodeMap map_ = NodeMap::parse("2x2", 4);
  InProcessHub hub_{map_, kTimeout};
  Array weights_[2] = {{kElements, DataType::kBFloat16}, {kElements, DataType::kBFloat16}};
  Array gradient_{kElements, DataType::kFloat32};
  std::vector<std::unique_ptr<Rank>> ranks_;
  int64_t steps_ = 0;
  std::atomic<bool> failed_ = false;
};

void bench_step(benchmark::State& state) {
  World world;
  world.step();  // the first gather is whole
  measure(
      state, world.gradient(), [&] { world.step(); }, [] {}, true);
  verify(state, world.is_right());
}

}  // namespace

void register_step() { add_benchmark("step", kMib, bench_step); }

}  // namespace isthmus::bench
