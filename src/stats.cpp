#include "isthmus/stats.h"

namespace isthmus {

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kAllReduce:
      return "all_reduce";
  }
  return "unknown";
}

CollectiveStats& CollectiveStats::operator+=(const CollectiveStats& more) {
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

PeerWaits& PeerWaits::operator+=(const PeerWaits& more) {
  for (const auto tier : {&PeerWaits::intra, &PeerWaits::inter, &PeerWaits::flat}) {
    add_counts(more.*tier, this->*tier);
  }
  return *this;
}

WeightStats& WeightStats::operator+=(const WeightStats& more) {
  gathers += more.gathers;
  unchanged += more.unchanged;
  healed += more.healed;
  add_counts(more.differing, differing);
  add_counts(more.whole, whole);
  replica_bytes += more.replica_bytes;
  return *this;
}

}  // namespace isthmus
