// The two-tier collectives. This is the main path; everything else hangs from it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/codec.h"
#include "isthmus/device.h"
#include "isthmus/node_map.h"
#include "isthmus/options.h"
#include "isthmus/stats.h"
#include "isthmus/transport.h"
#include "isthmus/unit.h"

namespace isthmus {

class ScratchInTurns;
class TagcFlat;
class UnitTable;
struct GroupMeasurements;
struct Measurements;
enum class PacketUse : uint8_t;
struct ResidualSizes;
struct ScratchPart;
struct Segment;
struct Unit;
struct UnitChoice;

// The transports of one rank. intra: its node, by local index. inter: its rail, by node. flat: all ranks, by rank; only
// with tiers=flat. A tier of one rank may be null. gather_*: for all-gathers, so that those do not queue behind
// reductions on a GPU; null: they use intra and inter.
struct Tiers {
  std::shared_ptr<Transport> intra;
  std::shared_ptr<Transport> inter;
  std::shared_ptr<Transport> flat;
  std::shared_ptr<Transport> gather_intra = nullptr;
  std::shared_ptr<Transport> gather_inter = nullptr;
};

// Collective over the ranks of a NodeMap; every rank calls the same methods in the same order with equal arguments,
// from one thread at a time (phase(), stats() and abort() from any).
//
// On the CPU collectives are done on return, streams mean nothing, and the returned events are null. On a GPU the
// calling thread enqueues: the work begins when what is on `stream` now is done, and the event that is returned passes
// when the work is done. Buffers stay alive until then, and device().wait(event, stream) lets a stream wait for it.
// Nothing waits for the device. What a decoder finds wrong there is thrown by a later call, or by throw_if_faulted().
// Collectives can be captured into a CUDA graph, once each unit has been reduced without one. Graphs of one
// communicator are replayed one after the other; their units keep the scale that they had, and are neither loaded nor
// cleared while the graph is in use. What has no `stream` (scale_residuals(), count_step(), ...) is not ordered with
// replays: the caller waits for those first.
//
// Wrong arguments throw Error before anything is sent, and leave the communicator usable. After any other exception it
// is aborted: its tiers fail, so that the peers fail too, and every later call throws TransportError.
class Communicator {
 public:
  // map.even() must hold; with one node there is one tier, and everything is exact. All buffers are on `device`, and
  // so do the tiers expect them. Throws OptionError or Error if options, tiers or device do not fit the map.
  Communicator(NodeMap map, int rank, Tiers tiers, Options options,
               std::shared_ptr<Device> device = make_host_device());
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // shard = scale * sum over ranks of chunk rank() of `gradient`, which has world_size equal chunks of the shard's size
  // and type. Through options.codec with the unit's residual, if why_exact is null and if policy and shape allow; else
  // through codec `none`, and the reason is counted. why_exact: a string literal. Floating types; float64 is always
  // plain. unit: collective, num_elements and dtype are those of this call. `shard` may be this rank's chunk of
  // `gradient`.
  EventPtr reduce_scatter(ConstBuffer gradient, Buffer shard, double scale, const UnitKey& unit, const char* why_exact,
                          Stream stream = {});

  // data = scale * sum over ranks of data, the same bits on every rank. Any number of elements. The rest is as for
  // reduce_scatter: each rank reduces its chunk, and every rank decodes the same packet of the result. After an
  // exception that is not about arguments `data` is unspecified.
  EventPtr all_reduce(Buffer data, double scale, const UnitKey& unit, const char* why_exact, Stream stream = {});

  // gathered chunk r = rank r's `shard`, bit for bit. Any type. `shard` may be its own chunk of `gathered`.
  // Always in two tiers: whether that pays (options.min_elements, options.two_tier_all_gather) is the caller's choice.
  EventPtr all_gather(ConstBuffer shard, Buffer gathered, Stream stream = {});

  // The phase that is running, for reports about faults: "intra reduce-scatter", "encode", "inter exchange", ...;
  // "idle" between calls. After a failure: the phase that failed.
  const char* phase() const { return phase_; }

  // codec=auto: how fast links and codecs are for sums of this type; measured first, if that is not done yet. Equal on
  // all ranks. Collective where it measures.
  Measurements measure(DataType dtype);

  // codec=auto: whom to ask which share of a unit's reductions, by UnitKey::hash(), the caller has waited for since the
  // last time, on this rank; nothing: unknown, and taken for all of it. Asked from within reductions.
  void ask_for_exposure(std::function<std::optional<double>(uint64_t unit_hash)> exposed_share) {
    exposed_share_ = std::move(exposed_share);
  }

  // Throws what a codec has found on a GPU, or a tier has failed with, once the host can see it; the communicator is
  // then aborted. Does not wait.
  void throw_if_faulted();

  // The state of this rank's units, by key. Views that are valid until the next call of a method that is not const, of
  // the device's memory. Waits for the device.
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

  Stats stats();
  void reset_stats();  // counters and seconds; not units nor residuals
  void abort();

  Device& device() const { return *device_; }
  const NodeMap& node_map() const { return map_; }
  const Options& options() const { return options_; }

 private:
  // How one reduction is done; decided alike on all ranks.
  struct Reduction {
    Unit* unit = nullptr;  // null: plain
    Codec* codec = nullptr;
    Codec* result_codec = nullptr;  // for the result of an all-reduce
    TagcFlat* tagc_flat = nullptr;  // tiers=flat; null: plain
    bool is_lossy = false;
    bool drains = false;    // sends what the unit's residuals hold, and leaves none
    bool measures = false;  // the error of the codec
    uint64_t hash = 0;      // of the unit
    uint64_t step = 0;
    kernels::DeviceContext* contexts = nullptr;  // by PacketUse; on a GPU
    double scale = 1;                            // of the sum of pieces
  };
  // A segment of the pieces, on its way to the nodes that own it.
  struct Crossing {
    const Segment* segment;
    Buffer packets;  // one for each node, at its place
    Buffer arrived;  // likewise; what is at this node's own place is unspecified
    HandlePtr handle;
    EventPtr done;
  };
  // What is known of a unit's reductions. The error is what was measured since the beginning; `before`, up to the last
  // reset.
  struct UnitRecord {
    UnitStats stats;
    std::shared_ptr<const SquaredError> error;
    std::shared_ptr<UnitChoice> choice;
    double given_before = 0;
    double dropped_before = 0;
  };
  // What was timed on a GPU: known once both events have passed.
  struct Timing {
    EventPtr begin;
    EventPtr end;
    Collective collective;
    double CollectiveStats::*seconds;
  };
  class Step;

  void reduce_to_shard(ConstBuffer gradient, Buffer shard, const Reduction& reduction);

  // The main path, and what its lines do. Each runs on a lane of its own.
  void reduce_scatter_in_two_tiers(ConstBuffer gradient, Buffer shard, const Reduction& reduction);
  ConstBuffer sum_within_node(ConstBuffer gradient);
  Buffer encode(ConstBuffer pieces, const EventPtr& summed, const Segment& segment, const Reduction& reduction);
  Crossing exchange_along_rail(Buffer packets, const Segment& segment);
  void wait_on_host(Crossing& crossing);
  void decode_sum(ConstBuffer pieces, Crossing& crossing, const Reduction& reduction, Buffer sum);

  // Encodes one segment of a piece, or of a result, with all that its unit's residual asks for.
  void encode_packet(Codec& codec, ConstBuffer values, Buffer residual, Buffer packet, const Reduction& reduction,
                     const PacketContext& context, Workspace with);
  void measure_error(Codec& codec, ConstBuffer given, ConstBuffer packet, const Reduction& reduction,
                     const PacketContext& context);
  Buffer in_float32(ConstBuffer values, ConstBuffer residual);

  // The single-tier baseline.
  void reduce_scatter_flat(ConstBuffer gradient, Buffer shard, const Reduction& reduction);
  Buffer sum_plainly(ConstBuffer gradient);
  Buffer sum_tagc(ConstBuffer gradient, const Reduction& reduction, Buffer sum);

  ConstBuffer gather_along_rail(ConstBuffer shard, Buffer by_node);
  void gather_within_node(ConstBuffer rail, Buffer by_node);

  // All-reduce, and what else its lines do.
  void all_reduce_through_owners(Buffer data, const Reduction& reduction);
  ConstBuffer in_equal_chunks(ConstBuffer data);
  Buffer encode_result(ConstBuffer result, const Reduction& reduction);
  void decode_result(ConstBuffer packets, const Reduction& reduction, Buffer data);
  Buffer place_of_packets(int first, int count, int64_t chunk, Buffer data) const;

  void check_tiers() const;
  void check_reduce_scatter(ConstBuffer gradient, ConstBuffer shard, const UnitKey& unit) const;
  void check_all_reduce(ConstBuffer data, const UnitKey& unit) const;
  void check_unit(const UnitKey& unit, Collective collective, ConstBuffer data) const;
  void check_all_gather(ConstBuffer shard, ConstBuffer gathered) const;

  // Runs the body of one collective: statistics, scratch, streams and failure are handled here.
  template <typename Body>
  EventPtr run(Collective collective, Stream caller, const Body& body);
  void begin(Stream caller, Collective collective);
  EventPtr end();
  void record();
  // What the collective that is running enqueues from now on runs on `lane`, after what it enqueued before.
  void enter(Lane lane);
  void enter_after(const EventPtr& event, Lane lane);  // after `event` alone
  void arrive(Lane lane);
  EventPtr event_here();  // passes when what it has enqueued until now is done
  Buffer take_scratch(int64_t num_elements, DataType dtype);
  Workspace workspace(int64_t scratch_bytes);
  // For packets that are encoded or decoded now, and counted afterwards.
  // sender: the node that encodes the first of them, and so the number along the rail that seeds a codec: it is equal
  // for copies of a parameter, which other ranks hold and which must stay equal.
  PacketContext context_for(const Reduction& reduction, PacketUse use, int sender, uint8_t segment = 0);
  void count_packets(const Reduction& reduction, PacketUse use);
  void check_capture(const UnitKey& key, double scale, const char* why_exact, Stream caller) const;
  void add_timings();  // under mutex_
  Transport* gather_intra() const { return (tiers_.gather_intra ? tiers_.gather_intra : tiers_.intra).get(); }
  Transport* gather_inter() const { return (tiers_.gather_inter ? tiers_.gather_inter : tiers_.inter).get(); }
  std::array<std::shared_ptr<Transport>, 5> all_tiers() const {  // any may be null
    return {tiers_.intra, tiers_.inter, tiers_.flat, tiers_.gather_intra, tiers_.gather_inter};
  }
  // The operations of one tier are all on one lane.
  Lane gather_intra_lane() const { return tiers_.gather_intra ? Lane::kGatherIntra : Lane::kIntra; }
  Lane gather_inter_lane() const { return tiers_.gather_inter ? Lane::kGatherInter : Lane::kInter; }
  static Traffic traffic_of(const std::shared_ptr<Transport>& tier);  // of none: zero
  Traffic intra_traffic() const;
  Traffic inter_traffic() const;
  void fail(const std::string& reason);
  Reduction decide(const UnitKey& key, double scale, const char* why_exact);
  void decide_for_unit(const UnitKey& key, int num_summands, Reduction& reduction);
  void follow_stage(Unit& unit, const UnitKey& key, int num_summands);
  bool chooses() const;
  const Options& wanted_settings(Unit& unit, const UnitKey& key);
  void choose_for(Unit& unit, const UnitKey& key);
  void exchange_measurements(Unit& unit);
  void follow_exposure(UnitChoice& unit, double exposed_share);
  void watch_links(UnitChoice& unit, double seconds_over_model);
  std::string reason_of_codec() const;
  void add_to_choice() const;
  void record_unit();  // under mutex_
  const char* exact_reason(const UnitKey& key, double scale, const char* why_exact) const;
  Codec& codec(const Options& settings, DataType dtype, int num_summands);
  Codec& plain_codec(DataType dtype, int num_summands);
  TagcFlat& tagc_flat(const Options& settings);
  static bool has_residual(const Reduction& reduction);
  // Elements of this rank's chunk: data that is not divisible is filled up with zeros.
  int64_t chunk_elements(int64_t num_elements) const {
    return (num_elements + map_.world_size() - 1) / map_.world_size();
  }
  ResidualSizes residual_sizes(const UnitKey& key);
  SumType piece_type(DataType dtype) const;
  void end_step(bool skipped);
  void show_units();
  Buffer sum_target(Buffer shard);

  bool flat() const { return options_.tiers == "flat"; }
  bool codes_own_piece() const { return options_.own_piece == "coded" && !flat(); }
  int num_nodes() const { return map_.num_nodes(); }
  int ranks_per_node() const { return map_.ranks_per_node(); }
  int node() const { return map_.node(rank_); }

  const NodeMap map_;
  const int rank_;
  const Tiers tiers_;
  const Options options_;
  const std::shared_ptr<Device> device_;

  std::unique_ptr<ScratchInTurns> reduction_scratch_;
  std::unique_ptr<ScratchInTurns> gather_scratch_;  // on the CPU all use the former
  std::unique_ptr<UnitTable> units_;
  std::shared_ptr<kernels::DeviceContext> plain_contexts_;  // of all reductions that have no unit; on a GPU
  std::map<std::tuple<std::string, DataType, int>, std::unique_ptr<Codec>> codecs_;
  std::map<std::string, std::unique_ptr<TagcFlat>> tagc_flat_;  // by settings
  std::function<std::optional<double>(uint64_t)> exposed_share_;
  std::unique_ptr<GroupMeasurements> group_measurements_;  // codec=auto: once they are taken
  uint64_t num_reductions_ = 0;                            // the step in the packets of plain reductions

  // Of the collective that is running; what is counted is added to stats_ when it is done.
  Collective collective_ = Collective::kReduceScatter;
  CollectiveStats current_;
  CodecCounts current_codec_;
  const char* current_reason_ = nullptr;
  const UnitKey* current_key_ = nullptr;
  UnitRecord current_unit_;
  ScratchPart* scratch_ = nullptr;
  Stream here_;           // what it has enqueued last is there
  bool entered_ = false;  // a lane
  bool timed_ = false;

  mutable std::mutex mutex_;  // guards what follows
  Stats stats_;
  std::deque<Timing> timings_;  // not known yet
  std::map<uint64_t, UnitRecord> unit_records_;
  int64_t sent_elements_ = 0;  // by lossy codecs since the last step ended
  std::string failure_;        // why the communicator is aborted; empty: it is not
  std::atomic<const char*> phase_ = "idle";
};

}  // namespace isthmus
