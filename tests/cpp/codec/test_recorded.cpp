// What crosses between nodes and what comes out, byte for byte, against a recorded file: for changes that are to change
// neither. After one that is (another wire format, another default), the test says where the new record lies.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "isthmus/communicator.h"
#include "tests/cpp/support/hooked_transport.h"
#include "tests/cpp/support/world.h"

namespace isthmus::test {
namespace {

constexpr int kSteps = 3;
constexpr int64_t kChunk = 4096 + 4096 + 708;  // of a rank: two segments, of which the second ends in a part of a group

// FNV-1a.
class Hash {
 public:
  void add(ConstBuffer buffer) {
    const auto* bytes = buffer.as<uint8_t>();
    for (int64_t i = 0; i < buffer.bytes(); ++i) {
      value_ = (value_ ^ bytes[i]) * 0x100000001b3;
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

// Whole numbers, most of them small, and a few zeros: the same with every standard library.
Array gradient(int64_t num_elements, DataType dtype, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<double> values(static_cast<size_t>(num_elements));
  for (double& value : values) {
    const uint64_t bits = generator();
    value = static_cast<double>(static_cast<int64_t>(bits % 2001) - 1000) / static_cast<double>(1 << (bits >> 40) % 11);
  }
  return {values, dtype};
}

Options options_of(const std::map<std::string, std::string>& settings) {
  Options options;
  options.min_elements = 0;
  options.segments = 2;
  for (const OptionField& field : option_fields()) {
    if (settings.contains(field.name)) {
      field.set(options, settings.at(field.name));
    }
  }
  return options;
}

// What a rank has for itself in an all-to-all goes nowhere, and is not encoded.
HookedTransport::Before hash_of_sent(const Transport& tier, Hash& hash) {
  return [&hash, rank = tier.rank(), size = tier.size()](const std::string& operation, ConstBuffer in) {
    if (operation != "all_to_all") {
      hash.add(in);
      return;
    }
    const int64_t elements = in.num_elements / size;
    for (int to = 0; to < size; ++to) {
      if (to != rank) {
        hash.add(in.part(to, elements));
      }
    }
  };
}

// Adds to `hash` what the ranks sent to other nodes, and their results, one rank after the other.
void record(const NodeMap& map, const Options& options, DataType dtype, Hash& hash) {
  std::vector<Hash> of_rank(static_cast<size_t>(map.world_size()));
  const auto wrap = [&](int rank, Tiers tiers) {
    for (std::shared_ptr<Transport>* tier : {&tiers.inter, &tiers.gather_inter, &tiers.flat}) {
      if (*tier != nullptr) {
        *tier = std::make_shared<HookedTransport>(*tier, hash_of_sent(**tier, of_rank[rank]), nullptr);
      }
    }
    return tiers;
  };
  World world(map, options, kTimeout, wrap);
  run_ranks_well(world.size(), [&](int rank) {
    for (int step = 0; step < kSteps; ++step) {
      const uint64_t seed = 100 * step + rank;
      const Array whole = gradient(world.size() * kChunk, dtype, seed);
      Array shard(kChunk, dtype);
      world.ranks[rank]->reduce_scatter(whole.view(), shard.buffer(), {{"first", world.size() * kChunk, dtype}, .25});
      Array summed = gradient(kChunk + 3, dtype, seed + 50);
      world.ranks[rank]->all_reduce(summed.buffer(), {{"second", kChunk + 3, dtype, Collective::kAllReduce}});
      Array gathered(world.size() * kChunk, dtype);
      world.ranks[rank]->all_gather(shard.view(), gathered.buffer());
      for (const Array* result : {&shard, &summed, &gathered}) {
        of_rank[rank].add(result->view());
      }
    }
  });
  for (const Hash& one : of_rank) {
    const uint64_t value = one.value();
    hash.add({&value, 8, DataType::kByte});
  }
}

const std::vector<std::map<std::string, std::string>> kSettings = {
    {},
    {{"codec", "none"}},
    {{"bits", "1"}},
    {{"bits", "2"}},
    {{"bits", "3"}},
    {{"bits", "5"}},
    {{"bits", "6"}},
    {{"bits", "7"}},
    {{"bits", "8"}},
    {{"error_feedback", "on"}},
    {{"bits", "1"}, {"error_feedback", "on"}},
    {{"codec", "tagc"}, {"sparsity", "0.9"}, {"ratio", "2"}},
    {{"codec", "tagc"}, {"sparsity", "0.9"}, {"ratio", "2"}, {"tiers", "flat"}},
};

// A line for each settings: on several maps, in several types.
TEST(Recorded, PacketsAndResultsAreThoseOfTheRecord) {
  std::ostringstream now;
  for (const auto& settings : kSettings) {
    Hash hash;
    for (const char* map : {"2x2", "4x1", "0,2|1,3"}) {
      for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
        record(NodeMap::parse(map, 4), options_of(settings), dtype, hash);
      }
    }
    now << std::hex << hash.value();
    for (const auto& [option, value] : settings) {
      now << ' ' << option << '=' << value;
    }
    now << '\n';
  }
  std::ostringstream recorded;
  recorded << std::ifstream(ISTHMUS_SOURCE_DIR "/tests/cpp/codec/recorded.txt").rdbuf();
  if (now.str() != recorded.str()) {
    const std::string path = testing::TempDir() + "recorded.txt";
    std::ofstream(path) << now.str();
    FAIL() << "not as tests/cpp/codec/recorded.txt says: see " << path;
  }
}

}  // namespace
}  // namespace isthmus::test
