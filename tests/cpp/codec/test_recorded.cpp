// What crosses between nodes and what comes out, byte for byte, against a recorded file: for changes that are to change
// neither. After one that is (another wire format, another default), the test says where the new record lies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/error.h"
#include "tests/cpp/support/hooked_transport.h"
#include "tests/cpp/support/world.h"

namespace isthmus {
namespace {

using test::Array;
using test::World;

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

using Settings = std::map<std::string, std::string>;

Options options_of(const Settings& settings) {
  Options options;
  options.min_elements = 0;
  options.segments = 2;
  for (const auto& [name, value] : settings) {
    const auto field =
        std::ranges::find_if(option_fields(), [&](const OptionField& each) { return each.name == name; });
    if (field == option_fields().end()) {
      throw OptionError("there is no option " + name);
    }
    field->set(options, value);
  }
  options.validate();
  return options;
}

// What a rank has for itself in an all-to-all goes nowhere, and is not encoded.
test::HookedTransport::Before hash_of_sent(const Transport& tier, Hash& hash) {
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

// A hash of what the ranks sent to other nodes, one after the other, and one of their results.
std::string record(const NodeMap& map, const Options& options, DataType dtype) {
  std::vector<Hash> sent(static_cast<size_t>(map.world_size()));
  std::vector<Hash> results(sent.size());
  const auto wrap = [&](int rank, Tiers tiers) {
    for (std::shared_ptr<Transport>* tier : {&tiers.inter, &tiers.gather_inter, &tiers.flat}) {
      if (*tier != nullptr) {
        *tier = std::make_shared<test::HookedTransport>(*tier, hash_of_sent(**tier, sent[rank]), nullptr);
      }
    }
    return tiers;
  };
  World world(map, options, test::kTimeout, wrap);
  test::run_ranks_well(world.size(), [&](int rank) {
    for (int step = 0; step < kSteps; ++step) {
      const uint64_t seed = 100 * step + rank;
      const Array whole = gradient(world.size() * kChunk, dtype, seed);
      Array shard(kChunk, dtype);
      world.ranks[rank]->reduce_scatter(whole.view(), shard.buffer(), {{"first", world.size() * kChunk, dtype}, .25});
      results[rank].add(shard.view());
      Array summed = gradient(kChunk + 3, dtype, seed + 50);
      world.ranks[rank]->all_reduce(summed.buffer(), {{"second", kChunk + 3, dtype, Collective::kAllReduce}});
      results[rank].add(summed.view());
      Array gathered(world.size() * kChunk, dtype);
      world.ranks[rank]->all_gather(shard.view(), gathered.buffer());
      results[rank].add(gathered.view());
    }
  });
  Hash all_sent;
  Hash all_results;
  for (size_t rank = 0; rank < sent.size(); ++rank) {
    const uint64_t values[] = {sent[rank].value(), results[rank].value()};
    all_sent.add({&values[0], 8, DataType::kByte});
    all_results.add({&values[1], 8, DataType::kByte});
  }
  std::ostringstream text;
  text << std::hex << std::setfill('0') << std::setw(16) << all_sent.value() << ' ' << std::setw(16)
       << all_results.value();
  return text.str();
}

const std::vector<Settings> kSettings = {
    {},
    {{"codec", "none"}},
    {{"bits", "1"}},
    {{"bits", "2"}},
    {{"bits", "3"}},
    {{"bits", "8"}},
    {{"error_feedback", "on"}},
    {{"bits", "1"}, {"error_feedback", "on"}},
    {{"codec", "tagc"}, {"sparsity", "0.9"}, {"ratio", "2"}},
    {{"codec", "tagc"}, {"sparsity", "0.9"}, {"ratio", "0"}, {"cell_type", "bf16"}},
    {{"codec", "tagc"}, {"sparsity", "0.9"}, {"ratio", "4"}, {"cell_type", "int8"}},
    {{"codec", "tagc"}, {"sparsity", "0.9"}, {"ratio", "2"}, {"tiers", "flat"}},
};

std::string name_of(const Settings& settings) {
  std::string name;
  for (const auto& [option, value] : settings) {
    name += (name.empty() ? "" : ",") + option + "=" + value;
  }
  return name.empty() ? "default" : name;
}

TEST(Recorded, PacketsAndResultsAreThoseOfTheRecord) {
  std::ifstream file(ISTHMUS_SOURCE_DIR "/tests/cpp/codec/recorded.txt");
  ASSERT_TRUE(file.is_open());
  const std::string recorded((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::ostringstream now;
  for (const Settings& settings : kSettings) {
    for (const char* map : {"2x2", "4x1", "0,2|1,3"}) {
      for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
        now << name_of(settings) << ' ' << map << ' ' << to_string(dtype) << ": "
            << record(NodeMap::parse(map, 4), options_of(settings), dtype) << '\n';
      }
    }
  }
  if (now.str() != recorded) {
    const std::string path = testing::TempDir() + "recorded.txt";
    std::ofstream(path) << now.str();
    FAIL() << "not as tests/cpp/codec/recorded.txt says: see " << path;
  }
}

}  // namespace
}  // namespace isthmus
