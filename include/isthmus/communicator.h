// The two-tier collectives. This is the main path; everything else hangs from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/codec.h"
#include "isthmus/node_map.h"
#include "isthmus/options.h"
#include "isthmus/stats.h"
#include "isthmus/transport.h"
#include "isthmus/unit.h"

namespace isthmus {

class Scratch;
class TagcFlat;
class UnitTable;
struct ResidualSizes;
struct Unit;

// The transports of one rank. intra: its node, by local index. inter: its rail, by node. flat: all ranks, by rank; only
// with tiers=flat. A tier of one rank may be null.
struct Tiers {
  std::shared_ptr<Transport> intra;
  std::shared_ptr<Transport> inter;
  std::shared_ptr<Transport> flat;
};

// Collective over the ranks of a NodeMap; every rank calls the same methods in the same order with equal arguments,
// from one thread at a time (phase(), stats() and abort() from any). Blocking on CPU.
//
// Wrong arguments throw Error before anything is sent, and leave the communicator usable. After any other exception it
// is aborted: its tiers fail, so that the peers fail too, and every later call throws TransportError.
class Communicator {
 public:
  // map.even() must hold; with one node there is one tier, and everything is exact. Throws OptionError or Error if
  // options or tiers do not fit the map.
  Communicator(NodeMap map, int rank, Tiers tiers, Options options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // shard = scale * sum over ranks of chunk rank() of `gradient`, which has world_size equal chunks of the shard's size
  // and type. Through options.codec with the unit's residual, if why_exact is null and if policy and shape allow; else
  // through codec `none`, and the reason is counted. why_exact: a string literal. Floating types; float64 is always
  // plain. unit: collective, num_elements and dtype are those of this call. `shard` may be this rank's chunk of
  // `gradient`.
  void reduce_scatter(ConstBuffer gradient, Buffer shard, double scale, const UnitKey& unit, const char* why_exact,
                      Stream stream = {});

  // data = scale * sum over ranks of data, the same bits on every rank. Any number of elements. The rest is as for
  // reduce_scatter: each rank reduces its chunk, and every rank decodes the same packet of the result. After an
  // exception that is not about arguments `data` is unspecified.
  void all_reduce(Buffer data, double scale, const UnitKey& unit, const char* why_exact, Stream stream = {});

  // gathered chunk r = rank r's `shard`, bit for bit. Any type. `shard` may be its own chunk of `gathered`.
  // Always in two tiers: whether that pays (options.min_elements, options.two_tier_all_gather) is the caller's choice.
  void all_gather(ConstBuffer shard, Buffer gathered, Stream stream = {});

  // The phase that is running, for reports about faults: "intra reduce-scatter", "encode", "inter exchange", ...;
  // "idle" between calls. After a failure: the phase that failed.
  const char* phase() const { return phase_; }

  // The state of this rank's units, by key. Views that are valid until the next call of a method that is not const.
  // These methods, to count_skipped_step(), send nothing, and are called between collectives by the thread that calls
  // those.
  std::vector<UnitState> unit_states() const;
  // Copies `state` in place of what the unit of that key had. An empty residual is one of zeros. Throws Error if it
  // does not fit this group and its options, or if there are max_units units already; then nothing has changed.
  void load_unit(const UnitState& state);
  void clear_units();
  // Multiplies all residuals: for when later gradients are larger by `factor` (finite and above 0) than earlier ones.
  void scale_residuals(double factor);
  // At the end of a step: whether its result was used, or thrown away. A step that is thrown away is counted in
  // Stats::skipped_steps, and what lossy codecs sent since the last call of these two in skipped_elements.
  void count_step();
  void count_skipped_step();

  Stats stats() const;
  void reset_stats();  // counters and seconds; not units nor residuals
  void abort();

  const NodeMap& node_map() const { return map_; }
  const Options& options() const { return options_; }

 private:
  // How one reduction is done; decided alike on all ranks.
  struct Reduction {
    Unit* unit = nullptr;  // null: plain
    Codec* codec = nullptr;
    PacketContext context;
    Codec* result_codec = nullptr;  // for the result of an all-reduce

    // A packet of the result is never taken for one of a piece.
    PacketContext result_context() const { return {~context.unit_hash, context.step}; }
  };
  class Step;

  void reduce_to_shard(ConstBuffer gradient, Buffer shard, double scale, const Reduction& reduction, Stream stream);

  // The main path, and what its lines do.
  void reduce_scatter_in_two_tiers(ConstBuffer gradient, Buffer shard, double scale, const Reduction& reduction,
                                   Stream stream);
  ConstBuffer sum_within_node(ConstBuffer gradient, Stream stream);
  Buffer encode(ConstBuffer pieces, const Reduction& reduction, Stream stream);
  Buffer exchange_along_rail(Buffer packets, Stream stream);
  Buffer decode_sum(ConstBuffer pieces, ConstBuffer arrived, const Reduction& reduction, Buffer shard, Stream stream);

  // The single-tier baseline.
  void reduce_scatter_flat(ConstBuffer gradient, Buffer shard, double scale, const Reduction& reduction, Stream stream);
  Buffer sum_plainly(ConstBuffer gradient, Stream stream);
  Buffer sum_tagc(ConstBuffer gradient, const Reduction& reduction, Buffer sum, Stream stream);

  ConstBuffer gather_along_rail(ConstBuffer shard, Buffer by_node, Stream stream);
  void gather_within_node(ConstBuffer rail, Buffer by_node, Stream stream);

  // All-reduce, and what else its lines do.
  void all_reduce_through_owners(Buffer data, double scale, const Reduction& reduction, Stream stream);
  ConstBuffer in_equal_chunks(ConstBuffer data);
  Buffer encode_result(ConstBuffer result, const Reduction& reduction, Stream stream);
  void decode_result(ConstBuffer packets, const Reduction& reduction, Buffer data, Stream stream);

  void check_tiers() const;
  void check_reduce_scatter(ConstBuffer gradient, ConstBuffer shard, const UnitKey& unit) const;
  void check_all_reduce(ConstBuffer data, const UnitKey& unit) const;
  void check_unit(const UnitKey& unit, Collective collective, ConstBuffer data) const;
  void check_all_gather(ConstBuffer shard, ConstBuffer gathered) const;

  // Runs the body of one collective: statistics, scratch and failure are handled here.
  template <typename Body>
  void run(Collective collective, const Body& body);
  void record(Collective collective);
  void fail(const std::string& reason);
  Reduction decide(const UnitKey& key, double scale, const char* why_exact);
  const char* exact_reason(const UnitKey& key, double scale, const char* why_exact) const;
  Codec& codec(const std::string& name, DataType dtype, int num_summands);
  // Elements of this rank's chunk: data that is not divisible is filled up with zeros.
  int64_t chunk_elements(int64_t num_elements) const {
    return (num_elements + map_.world_size() - 1) / map_.world_size();
  }
  ResidualSizes residual_sizes(const UnitKey& key);
  void end_step(bool skipped);
  void show_units();
  Buffer sum_target(Buffer shard);

  bool flat() const { return options_.tiers == "flat"; }
  int num_nodes() const { return map_.num_nodes(); }
  int ranks_per_node() const { return map_.ranks_per_node(); }
  int node() const { return map_.node(rank_); }

  const NodeMap map_;
  const int rank_;
  const Tiers tiers_;
  const Options options_;

  std::unique_ptr<Scratch> scratch_;
  std::unique_ptr<UnitTable> units_;
  std::map<std::tuple<std::string, DataType, int>, std::unique_ptr<Codec>> codecs_;
  std::unique_ptr<TagcFlat> tagc_flat_;
  uint64_t num_reductions_ = 0;  // the step in the packets of plain reductions

  // Of the collective that is running; added to stats_ when it is done.
  CollectiveStats current_;
  CodecCounts current_codec_;
  const char* current_reason_ = nullptr;

  mutable std::mutex mutex_;  // guards what follows
  Stats stats_;
  int64_t sent_elements_ = 0;  // by lossy codecs since the last step ended
  std::string failure_;        // why the communicator is aborted; empty: it is not
  std::atomic<const char*> phase_ = "idle";
};

}  // namespace isthmus
