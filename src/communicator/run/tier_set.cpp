#include "communicator/run/tier_set.h"

#include <algorithm>
#include <utility>
#include <vector>

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

}  // namespace

std::vector<std::shared_ptr<Transport>> Tiers::all() const {
  std::vector<std::shared_ptr<Transport>> all{intra, inter, flat, gather_intra, gather_inter};
  std::erase(all, nullptr);
  return all;
}

TierSet::TierSet(NodeMap map, int rank, Tiers tiers, bool with_flat)
    : map_(std::move(map)), rank_(rank), tiers_(std::move(tiers)), all_(tiers_.all()) {
  map_.require_even();
  ISTHMUS_CHECK(OptionError, num_nodes() <= kMostNodes, "a group of ", num_nodes(), " nodes: expected at most ",
                kMostNodes);
  ISTHMUS_CHECK(Error, rank_ >= 0 && rank_ < world_size(), "rank ", rank_, " is not in 0..", world_size() - 1);
  const int local_index = map_.local_index(rank_);
  check_tier("intra", tiers_.intra.get(), ranks_per_node(), local_index);
  check_tier("inter", tiers_.inter.get(), num_nodes(), node());
  if (tiers_.gather_intra) {
    check_tier("intra tier for gathers, the", tiers_.gather_intra.get(), ranks_per_node(), local_index);
  }
  if (tiers_.gather_inter) {
    check_tier("inter tier for gathers, the", tiers_.gather_inter.get(), num_nodes(), node());
  }
  if (with_flat) {
    check_tier("flat", tiers_.flat.get(), world_size(), rank_);
  }
  for (const auto& tier : all_) {
    counted_[tier.get()] = tier->traffic();
  }
}

SumType TierSet::piece_type(const Device& device, DataType dtype) const {
  return ranks_per_node() == 1 ? SumType{device.piece_dtype(dtype)} : intra().sum_type(dtype);
}

void TierSet::take_counts(CollectiveStats& sent, PeerWaits& waits) const {
  const auto take = [&](const std::shared_ptr<Transport>& tier, Traffic& traffic, std::map<int, double>& seconds) {
    if (tier != nullptr) {
      const Traffic now = tier->traffic();
      traffic += now - std::exchange(counted_[tier.get()], now);
      add_counts(tier->take_waits(), seconds);
    }
  };
  take(tiers_.intra, sent.intra, waits.intra);
  take(tiers_.gather_intra, sent.intra, waits.intra);
  take(tiers_.inter, sent.inter, waits.inter);
  take(tiers_.gather_inter, sent.inter, waits.inter);
  take(tiers_.flat, sent.flat, waits.flat);
}

void TierSet::add_aborts(std::vector<std::function<void()>>& aborts) const {
  for (const auto& tier : all_) {
    aborts.emplace_back([tier] { tier->abort(); });
  }
}

void TierSet::throw_if_failed() const {
  for (const auto& tier : all_) {
    tier->throw_if_failed();
  }
}

std::chrono::milliseconds TierSet::failure_delay() const {
  std::chrono::milliseconds longest{};
  for (const auto& tier : all_) {
    longest = std::max(longest, tier->failure_delay());
  }
  return longest;
}

}  // namespace isthmus
