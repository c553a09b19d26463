// The two-tier collectives. This is the main path; everything else hangs from it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/codec.h"
#include "isthmus/node_map.h"
#include "isthmus/options.h"
#include "isthmus/stats.h"
#include "isthmus/transport.h"

namespace isthmus {

// The transports of one rank. intra: its node, by local index. inter: its rail, by node. flat: all ranks, by rank; only
// with tiers=flat. A tier of one rank may be null.
struct Tiers {
  std::shared_ptr<Transport> intra;
  std::shared_ptr<Transport> inter;
  std::shared_ptr<Transport> flat;
};

// Whatever issues one gradient reduction in each step. Key: see docs/algorithms.md, "Units". Equal on all ranks.
struct UnitKey {
  std::string name;          // for people and for the policy: FSDP's label, or the fallback key's text
  int64_t num_elements = 0;  // of the whole input: another layout is another unit
  DataType dtype = DataType::kFloat32;

  uint64_t hash() const;  // stable over processes, restarts and machines
  bool operator==(const UnitKey&) const = default;
};

// Collective over the ranks of a NodeMap; every rank calls the same methods in the same order, from one thread at a
// time (stats() and abort() from any). Blocking on CPU. After an exception the communicator is aborted and must not be
// used again.
class Communicator {
 public:
  // map.two_tier() must hold. Throws OptionError or Error if options or tiers do not fit the map.
  Communicator(NodeMap map, int rank, Tiers tiers, Options options);
  ~Communicator();

  // shard = scale * sum over ranks of chunk rank() of `gradient`, which has world_size equal chunks of the shard's size
  // and type. compress: through options.codec with the unit's residual, if policy and shape allow (else, and without
  // compress, through codec `none`; the reason is counted). Floating types; float64 is always plain.
  void reduce_scatter(ConstBuffer gradient, Buffer shard, double scale, const UnitKey& unit, bool compress,
                      Stream stream = {});

  // gathered chunk r = rank r's `shard`, bit for bit. Any type. `shard` may be its own chunk of `gathered`.
  void all_gather(ConstBuffer shard, Buffer gathered, Stream stream = {});

  // The phase that is running, for reports about faults: "intra reduce-scatter", "encode", "inter exchange", ...
  const char* phase() const;

  Stats stats() const;
  void reset_stats();  // counters and seconds; not units nor residuals
  void abort();

  const NodeMap& node_map() const { return map_; }
  const Options& options() const { return options_; }

 private:
  struct Unit;
  struct Scratch;
  // ... see src/communicator.cpp
  NodeMap map_;
  int rank_;
  Tiers tiers_;
  Options options_;
};

}  // namespace isthmus
