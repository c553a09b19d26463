// The two-tier collectives. This is the main path; everything else hangs from it.
#pragma once

#include <memory>

#include "isthmus/buffer.h"
#include "isthmus/device.h"
#include "isthmus/node_map.h"
#include "isthmus/options.h"
#include "isthmus/stats.h"
#include "isthmus/transport.h"
#include "isthmus/unit.h"

namespace isthmus {

// The transports of one rank. intra: its node, by local index. inter: its rail, by node. flat: all ranks, by rank; only
// with tiers=flat. A tier of one rank may be null. gather_*: for all-gathers, so that those do not queue behind
// reductions on a GPU; null: they use intra and inter. host_inter: this rank's rail for memory of the host, for weights
// on a GPU; null: weights cross whole there.
struct Tiers {
  std::shared_ptr<Transport> intra;
  std::shared_ptr<Transport> inter;
  std::shared_ptr<Transport> flat;
  std::shared_ptr<Transport> gather_intra = nullptr;
  std::shared_ptr<Transport> gather_inter = nullptr;
  std::shared_ptr<Transport> host_inter = nullptr;
};

// Collective over the ranks of a NodeMap; every rank calls the same methods in the same order with equal arguments,
// from one thread at a time (phase(), throw_if_faulted(), stats() and abort() from any).
//
// On the CPU collectives are done on return, streams are ignored, and the returned events are null. On a GPU the
// calling thread enqueues: the work begins behind the present work of `stream`, and the returned event passes when it
// is done. Buffers stay alive until then, and device().wait(event, stream) lets a stream wait for it. Nothing waits for
// the device. A later call, or throw_if_faulted(), throws a fault that a decoder finds there. Collectives can be
// captured into a CUDA graph, once each unit has been reduced without one. Graphs of one communicator are replayed one
// after the other; their units keep the scale that they had, and are neither loaded nor cleared while the graph is in
// use. Methods of units() have no `stream` and are not ordered with replays: the caller waits for those first.
//
// Wrong arguments throw Error before anything is sent, and leave the communicator usable. After any other exception it
// is aborted: its tiers fail, so that the peers fail too, and every later call throws TransportError.
class Communicator {
 public:
  // map.even() must hold; with one node there is one tier, and everything is exact. All buffers are on `device`. Tiers
  // must accept `device`'s memory. Throws OptionError or Error if options, tiers or device do not fit the map.
  Communicator(NodeMap map, int rank, Tiers tiers, Options options,
               std::shared_ptr<Device> device = make_host_device());
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // shard = scale * sum over ranks of chunk rank() of `gradient`, which has world_size equal chunks of the shard's size
  // and type. Through options.codec with the unit's residual, if nothing says why it must be exact and if policy and
  // shape allow; else through codec `none`, and the reason is counted. Floating types; float64 is always plain. `shard`
  // may be this rank's chunk of `gradient`.
  EventPtr reduce_scatter(ConstBuffer gradient, Buffer shard, const Reduction& reduction, Stream stream = {});

  // data = scale * sum over ranks of data, the same bits on every rank. Any number of elements. The rest is as for
  // reduce_scatter: each rank reduces its chunk, and every rank decodes the same packet of the result. After an
  // exception that is not about arguments `data` is unspecified.
  EventPtr all_reduce(Buffer data, const Reduction& reduction, Stream stream = {});

  // gathered chunk r = rank r's `shard`, bit for bit. Any type. `shard` may be its own chunk of `gathered`.
  // Always in two tiers: whether that pays (options.min_elements) is the caller's choice.
  EventPtr all_gather(ConstBuffer shard, Buffer gathered, Stream stream = {});

  // The same for a unit's weights, which cross between nodes as bit-exact differences to what crossed in the unit's
  // gather before, or not at all where they are equal (docs/weights.md). It takes memory: the shards of this rank's
  // rail. They cross whole, which is counted by reason, in the unit's first gather, above max_units units and where
  // another rank has nothing to compare with; on a GPU also without tiers.host_inter and in CUDA graphs. That is built
  // for GPUs and tested with emulated ones, and was never run on one. unit: collective kAllGather, num_elements and
  // dtype are those of `gathered`.
  EventPtr gather_weights(ConstBuffer shard, Buffer gathered, const UnitKey& unit, Stream stream = {});
  // Frees the memory of the units of that name. Every rank's own affair: a later gather crosses whole.
  void drop_weights(const std::string& name);

  // The phase that is running, for reports about faults: "intra reduce-scatter", "encode", "inter exchange", ...;
  // "idle" between calls. After a failure: the phase that failed.
  const char* phase() const;
  // Throws a fault that a codec has found on a GPU, or the failure of a tier, once the host can see it; the
  // communicator is then aborted. Does not wait.
  void throw_if_faulted();
  void abort();

  UnitStates& units();
  const UnitStates& units() const;

  Stats stats();
  void reset_stats();  // counters and seconds; not units nor residuals

  Device& device() const;
  const NodeMap& node_map() const;
  const Options& options() const;

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace isthmus
