// Statistics of a communicator: bytes, calls, seconds, and the reasons why something was not compressed.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "isthmus/codec.h"
#include "isthmus/reason.h"
#include "isthmus/transport.h"

namespace isthmus {

template <typename Counts>
void add_counts(const Counts& more, Counts& total) {
  for (const auto& [key, count] : more) {
    total[key] += count;
  }
}

// The kinds of collective that the communicator carries.
enum class Collective : uint8_t { kReduceScatter, kAllGather, kAllReduce };
inline constexpr int kNumCollectives = 3;
inline const char* to_string(Collective collective) {
  constexpr const char* kNames[kNumCollectives] = {"reduce_scatter", "all_gather", "all_reduce"};
  return kNames[static_cast<size_t>(collective)];
}

// Seconds that this rank's host waited for messages of each other rank, by its global rank. GPUs have none: streams
// wait.
struct PeerWaits {
  std::map<int, double> intra;
  std::map<int, double> inter;
  std::map<int, double> flat;

  PeerWaits& operator+=(const PeerWaits& more) {
    add_counts(more.intra, intra);
    add_counts(more.inter, inter);
    add_counts(more.flat, flat);
    return *this;
  }
};

struct CollectiveStats {
  int64_t calls = 0;
  int64_t packed_calls = 0;  // calls that copied, because placement is not in blocks or the size not divisible
  Traffic intra;             // payload of this rank, by tier
  Traffic inter;
  Traffic flat;
  // Seconds. On a GPU they are measured between events around the phase, and only with options.device_timings.
  double intra_s = 0;     // in the node's tier
  double exchange_s = 0;  // in the inter or flat tier
  double encode_s = 0;    // in the codec; no field counts pack, unpack and scaling
  double decode_s = 0;

  CollectiveStats& operator+=(const CollectiveStats& more) {
    calls += more.calls;
    packed_calls += more.packed_calls;
    intra += more.intra;
    inter += more.inter;
    flat += more.flat;
    intra_s += more.intra_s;
    exchange_s += more.exchange_s;
    encode_s += more.encode_s;
    decode_s += more.decode_s;
    return *this;
  }
};

// Statistics of one unit. See UnitKey.
struct UnitStats {
  std::string name;
  Collective collective = Collective::kReduceScatter;
  int64_t num_elements = 0;
  DataType dtype = DataType::kFloat32;
  std::string codec;             // the last codec: "none", "quant", ...; "delta" for weights
  std::string settings;          // of that codec: "bits=4 error_feedback=off ..."
  std::optional<Reason> reason;  // why exact, or whole; nothing: it is not
  int64_t calls = 0;             // reductions, or gathers
  int64_t unchanged_calls = 0;   // gathers of weights that had not changed
  int64_t coded_elements = 0;    // elements of pieces and shards in packets for other nodes; a packet may be empty
  int64_t packet_bytes = 0;      // of those packets
  // Squares that lossy codecs were given (gradient and residual) and dropped, in measured reductions: the first, and
  // every options.error_interval after it. Their ratio is the relative squared error.
  double given_squares = 0;
  double dropped_squares = 0;
};

// What gathers of weights did (option weights=delta). See docs/weights.md.
struct WeightStats {
  int64_t gathers = 0;
  int64_t unchanged = 0;             // gathers for which this rank's shard had not changed
  int64_t healed = 0;                // gathers that found a replica with different bits, and sent all shards anew
  std::map<int, int64_t> differing;  // of these, by node: how often its replica had other bits than most
  std::map<Reason, int64_t> whole;   // gathers whose shards crossed whole
  int64_t replica_bytes = 0;         // memory of all replicas

  WeightStats& operator+=(const WeightStats& more) {
    gathers += more.gathers;
    unchanged += more.unchanged;
    healed += more.healed;
    add_counts(more.differing, differing);
    add_counts(more.whole, whole);
    replica_bytes += more.replica_bytes;
    return *this;
  }
};

struct Stats {
  std::array<CollectiveStats, kNumCollectives> collectives;
  CodecCounts codec;
  WeightStats weights;
  PeerWaits peer_waits;
  int64_t compressed_calls = 0;           // reductions that went through a lossy codec
  std::map<Reason, int64_t> exact_calls;  // operations that stayed exact
  int64_t skipped_steps = 0;              // steps whose result was thrown away (UnitStates::skip_step)
  int64_t num_units = 0;
  int64_t residual_bytes = 0;     // of all units, with the residuals of all-reduced results
  int64_t dropped_residuals = 0;  // units whose residuals were given up: that part of their gradients never arrives
  int64_t scratch_bytes = 0;
  std::map<uint64_t, UnitStats> units;  // by UnitKey::hash(), for units reduced since the last reset
};

}  // namespace isthmus
