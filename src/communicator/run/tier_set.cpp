#include "communicator/run/tier_set.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

constexpr int kMostNodes = 1 << 16;  // a packet's header says which of them encoded it

void check_tier(const char* name, const Transport* tier, int size, int rank) {
  if (size == 1 && tier == nullptr) {
    return;
  }
  ISTHMUS_CHECK(Error, tier != nullptr, "the ", name, " tier of ", size, " ranks is missing");
  ISTHMUS_CHECK(Error, tier->size() == size && tier->rank() == rank, "the ", name, " tier is rank ", tier->rank(),
                " of ", tier->size(), ", but the node map makes it rank ", rank, " of ", size);
}

Traffic traffic_of(const Transport* tier) { return tier != nullptr ? tier->traffic() : Traffic{}; }

}  // namespace

TierSet::TierSet(NodeMap map, int rank, Tiers tiers, bool with_flat)
    : map_(std::move(map)), rank_(rank), tiers_(std::move(tiers)) {
  map_.require_even();
  ISTHMUS_CHECK(OptionError, num_nodes() <= kMostNodes, "a group of ", num_nodes(), " nodes: expected at most ",
                kMostNodes);
  ISTHMUS_CHECK(Error, rank_ >= 0 && rank_ < world_size(), "rank ", rank_, " is not in 0..", world_size() - 1);
  check(with_flat);
}

void TierSet::check(bool with_flat) const {
  const int local_index = map_.local_index(rank_);
  const Transport* gather_intra = tiers_.gather_intra ? tiers_.gather_intra.get() : tiers_.intra.get();
  const Transport* gather_inter = tiers_.gather_inter ? tiers_.gather_inter.get() : tiers_.inter.get();
  check_tier("intra", tiers_.intra.get(), ranks_per_node(), local_index);
  check_tier("inter", tiers_.inter.get(), num_nodes(), node());
  check_tier("intra tier for gathers, the", gather_intra, ranks_per_node(), local_index);
  check_tier("inter tier for gathers, the", gather_inter, num_nodes(), node());
  if (with_flat) {
    check_tier("flat", tiers_.flat.get(), world_size(), rank_);
  }
}

SumType TierSet::piece_type(const Device& device, DataType dtype) const {
  return ranks_per_node() == 1 ? SumType{device.piece_dtype(dtype)} : intra().sum_type(dtype);
}

std::array<std::shared_ptr<Transport>, 5> TierSet::all() const {
  return {tiers_.intra, tiers_.inter, tiers_.flat, tiers_.gather_intra, tiers_.gather_inter};
}

Traffic TierSet::intra_traffic() const {
  Traffic traffic = traffic_of(tiers_.intra.get());
  return traffic += traffic_of(tiers_.gather_intra.get());
}

Traffic TierSet::inter_traffic() const {
  Traffic traffic = traffic_of(tiers_.inter.get());
  return traffic += traffic_of(tiers_.gather_inter.get());
}

Traffic TierSet::flat_traffic() const { return traffic_of(tiers_.flat.get()); }

PeerWaits TierSet::take_waits() const {
  PeerWaits waits;
  for (const auto& [tier, seconds] :
       {std::pair(&tiers_.intra, &PeerWaits::intra), std::pair(&tiers_.gather_intra, &PeerWaits::intra),
        std::pair(&tiers_.inter, &PeerWaits::inter), std::pair(&tiers_.gather_inter, &PeerWaits::inter),
        std::pair(&tiers_.flat, &PeerWaits::flat)}) {
    PeerWaits more;
    more.*seconds = *tier != nullptr ? (*tier)->take_waits() : std::map<int, double>{};
    waits += more;
  }
  return waits;
}

void TierSet::abort() const {
  std::vector<std::function<void()>> aborts;
  for (const std::shared_ptr<Transport>& tier : all()) {
    if (tier != nullptr) {
      aborts.emplace_back([tier] { tier->abort(); });
    }
  }
  run_in_threads(std::move(aborts), kAbortPatience);
}

void TierSet::throw_if_failed() const {
  for (const std::shared_ptr<Transport>& tier : all()) {
    if (tier != nullptr) {
      tier->throw_if_failed();
    }
  }
}

std::chrono::milliseconds TierSet::failure_delay() const {
  std::chrono::milliseconds longest{};
  for (const std::shared_ptr<Transport>& tier : all()) {
    longest = std::max(longest, tier != nullptr ? tier->failure_delay() : longest);
  }
  return longest;
}

}  // namespace isthmus
