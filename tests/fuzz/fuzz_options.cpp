// Options and node maps from text: refused with an OptionError, or taken so that their own text means the same.
#include <string>

#include "isthmus/error.h"
#include "isthmus/node_map.h"
#include "isthmus/options.h"
#include "tests/fuzz/packets.h"

using namespace isthmus;
using namespace isthmus::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider provider(data, size);
  const auto& fields = option_fields();
  const OptionField& field = fields[provider.ConsumeIntegralInRange<size_t>(0, fields.size() - 1)];
  const auto world_size = static_cast<int>(provider.ConsumeIntegralInRange<int64_t>(1, 32));
  const std::string text = provider.ConsumeRemainingBytesAsString();
  try {
    Options options;
    field.set(options, text);
    Options again;
    field.set(again, field.get(options));
    require(field.get(again) == field.get(options), "an option's own text means the same");
  } catch (const OptionError&) {
  }
  try {
    const NodeMap map = NodeMap::parse(text, world_size);
    require(map.world_size() == world_size, "a node map covers the world");
    for (int rank = 0; rank < world_size; ++rank) {
      require(map.rank(map.node(rank), map.local_index(rank)) == rank, "a node map knows every rank's place");
    }
  } catch (const OptionError&) {
  }
  return 0;
}
