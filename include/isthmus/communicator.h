// The two-tier collectives. This is the main path; everything else hangs from it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/device.h"
#include "isthmus/node_map.h"
#include "isthmus/options.h"
#include "isthmus/phase.h"
#include "isthmus/stats.h"
#include "isthmus/transport.h"
#include "isthmus/unit.h"

namespace isthmus {

// The transports of one rank. intra connects its node, by local index; inter its rail, by node; flat all ranks, by
// rank, and only with tiers=flat. A tier of one rank may be null. Gathers use gather_*, so that they do not queue
// behind reductions on a GPU; where those are null they use intra and inter.
struct Tiers {
  std::shared_ptr<Transport> intra;
  std::shared_ptr<Transport> inter;
  std::shared_ptr<Transport> flat;
  std::shared_ptr<Transport> gather_intra = nullptr;
  std::shared_ptr<Transport> gather_inter = nullptr;

  std::vector<std::shared_ptr<Transport>> all() const;  // those that there are
};

// A gather of weights whose first half is under way; see Communicator::gather_weights(). The thread that calls
// collectives calls its methods, while the communicator lives. One that is destroyed, on all ranks, before finish() has
// no second half.
class WeightGather {
 public:
  virtual ~WeightGather() = default;

  // Passes when the first half is done.
  virtual EventPtr begun() const = 0;
  // On a GPU, waits until the host has all nodes' headers, or the communicator is aborted. Any thread may call it.
  virtual void wait_for_headers() = 0;
  // The second half, for which it waits for the headers: packets cross, and the shards are gathered within the node. A
  // second call returns the same event. Gathers are finished in one order on all ranks, which need not be that of their
  // first halves. Throws Error if the unit was begun again and finished since.
  virtual EventPtr finish() = 0;
};
using WeightGatherPtr = std::shared_ptr<WeightGather>;

// Collectives over the ranks of a NodeMap. Every rank calls the same methods in the same order with equal arguments,
// from one thread at a time. Any thread may call phase(), throw_if_faulted(), stats(), abort()
// and is_aborted().
//
// On the CPU collectives are done on return; streams are ignored, and returned events are null. On a GPU the calling
// thread enqueues: the work begins behind the present work of `stream`, and the returned event passes when it is done.
// Buffers stay alive until then; device().wait(event, stream) makes a stream wait for it. Only
// a WeightGather waits for the device. If a decoder finds a fault there, a later call or
// throw_if_faulted() throws it.
//
// Collectives can be captured into a CUDA graph once each unit has been reduced outside a graph. Graphs of one
// communicator are replayed one after another. Their units keep the scale they had, and are held while the graph is in
// use. Methods of units() take no `stream` and are not ordered with replays: the caller waits for
// replays first.
//
// Wrong arguments throw Error before anything is sent, and the communicator stays usable. Any other exception aborts
// it: its tiers fail, so that the peers fail too, and every later call throws TransportError.
class Communicator {
 public:
  // Requires map.even(). With one node there is one tier, and everything is exact. All buffers are on `device`, whose
  // memory the tiers must accept. Throws OptionError or Error if options, tiers or device do not fit the map.
  Communicator(NodeMap map, int rank, Tiers tiers, Options options,
               std::shared_ptr<Device> device = make_host_device());
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // shard = scale * sum over ranks of chunk rank() of `gradient`, which has world_size chunks of the shard's size and
  // type. It goes through options.codec with the unit's residual. Where it must be exact, or policy or shape exclude
  // it, it goes through codec `none`, and the reason is counted. Types are floating; float64 is always plain. `shard`
  // may be this rank's chunk of `gradient`.
  EventPtr reduce_scatter(ConstBuffer gradient, Buffer shard, const Reduction& reduction, Stream stream = {});

  // data = scale * sum over ranks of data, with the same bits on every rank, for any number of elements. Codecs are
  // chosen as for reduce_scatter(): each rank reduces its chunk, and every rank decodes the same packet of the result.
  // After an exception that is not about arguments `data` is unspecified.
  EventPtr all_reduce(Buffer data, const Reduction& reduction, Stream stream = {});

  // Chunk r of `gathered` = rank r's `shard`, bit for bit, of any type. `shard` may be its own chunk of `gathered`.
  // This always takes two tiers: the caller decides whether that pays (options.min_elements).
  EventPtr all_gather(ConstBuffer shard, Buffer gathered, Stream stream = {});

  // Begins to gather a unit's weights: what `shard` differs by is encoded, and the nodes exchange headers. Both buffers
  // stay as they are until the gather is finished or given up. Between nodes only the bit-exact difference to the
  // unit's previous gather crosses, or nothing where they are equal (docs/weights.md). It keeps a copy of the shards of
  // this rank's rail in memory. The weights cross whole in the unit's first gather, where another rank has nothing to
  // compare with, and in CUDA graphs. Such gathers are counted by reason.
  // unit: collective kAllGather; num_elements and dtype of `gathered`.
  WeightGatherPtr gather_weights(ConstBuffer shard, Buffer gathered, const UnitPtr& unit, Stream stream = {});

  // The running phase, for reports about faults; kIdle between calls. After a failure: the phase that failed.
  Phase phase() const;
  // Throws the fault that a GPU's codec found, or the failure of a tier, once the host can see it. The communicator is
  // then aborted. It does not wait.
  void throw_if_faulted();
  // beside: what else ends now, each in a thread of its own, as each tier does. Waits for seconds at most, and leaves
  // what does not end to its thread; a second call aborts no tier again.
  void abort(std::vector<std::function<void()>> beside = {});
  bool is_aborted() const;

  UnitStates& units();

  Stats stats();
  void reset_stats();  // resets counters and seconds, but neither units nor residuals

  Device& device() const;
  const NodeMap& node_map() const;

 private:
  struct Impl;
  class Gather;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace isthmus
