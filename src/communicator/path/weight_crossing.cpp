#include "communicator/path/weight_crossing.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "communicator/path/weight_headers.h"
#include "kernels/weights/job.h"

namespace isthmus {
namespace {

bool has_changed(const WeightHeader& header) { return header.packet_bytes > 0; }

}  // namespace

WeightCrossing::WeightCrossing(const TierSet& tiers, const Options& options, Device& device,
                               std::function<void()> throw_if_aborted)
    : tiers_(tiers),
      options_(options),
      device_(device),
      throw_if_aborted_(std::move(throw_if_aborted)),
      coder_(make_weight_coder(device)) {}

void WeightCrossing::cross(Run& run, ConstBuffer shard, Replica& replica) {
  const Buffer sent = run.take(weight_sent_bytes(shard), DataType::kByte);
  const Buffer all_headers = run.take(tiers_.num_nodes() * kernels::kWeightHeaderBytes, DataType::kByte);
  encode(run, shard, replica, sent);
  const std::vector<WeightHeader> headers = exchange(run, sent.slice(0, kernels::kWeightHeaderBytes), all_headers);
  check_weight_headers(headers, shard);
  const std::string whole = why_whole(run, headers);
  const bool any_changed = std::any_of(headers.begin(), headers.end(), has_changed);
  const WeightHeader& own = headers[static_cast<size_t>(tiers_.node())];
  run.weights.unchanged = whole.empty() && !has_changed(own) ? 1 : 0;
  replica.is_valid = false;  // until every shard has been updated
  if (!whole.empty()) {
    gather_whole(run, shard, replica);
    ++run.weights.whole[whole];
  } else {
    run.coded_elements = (tiers_.num_nodes() - 1) * shard.num_elements;
    if (any_changed) {
      const auto own_bytes = static_cast<int64_t>(own.packet_bytes);
      gather_packets(run, shard, sent.slice(kernels::kWeightHeaderBytes, own_bytes), headers, all_headers, replica);
    }
  }
  replica.is_valid = true;
  for (const WeightHeader& header : headers) {  // a rank that lost its replica counts from 0 again
    replica.gathers = std::max(replica.gathers, uint64_t{header.gather});
  }
  ++replica.gathers;
}

void WeightCrossing::encode(Run& run, ConstBuffer shard, const Replica& replica, Buffer sent) {
  WeightEncode encode;
  encode.header.dtype = shard.dtype;
  encode.header.sender = static_cast<uint16_t>(tiers_.node());
  encode.header.unit_hash = replica.hash;
  encode.header.num_elements = static_cast<uint64_t>(shard.num_elements);
  encode.header.has_replica = replica.is_valid ? 1 : 0;
  if (replica.is_valid) {
    encode.header.gather = static_cast<uint32_t>(replica.gathers);
    encode.before = replica.shards.part(tiers_.node(), shard.num_elements);
    encode.replica = replica.is_compared(options_.replica_interval) ? replica.words() : ConstBuffer{};
  }
  encode.shard = shard;
  encode.sent = sent;
  const Step step(run, "compare weights", Lane::kEncodeWeights, &CollectiveStats::encode_s);
  if (replica.last_use != nullptr) {
    device_.wait(replica.last_use, run.tail());
  }
  coder_->encode(encode, run.workspace(coder_->encode_scratch_bytes(shard)));
}

std::vector<WeightHeader> WeightCrossing::exchange(Run& run, ConstBuffer own, Buffer all) {
  if (headers_on_host_ == nullptr) {
    headers_on_host_ = device_.allocate_on_host(all.bytes());
  }
  {
    const Step step(run, "inter all-gather of headers", tiers_.gather_inter_lane(), &CollectiveStats::exchange_s);
    tiers_.gather_inter().all_gather(own, all, run.tail())->wait(run.tail());
    device_.copy_to_host(all, {headers_on_host_, all.num_elements, all.dtype}, run.tail());
  }
  wait_for(run.event());
  tiers_.gather_inter().throw_if_failed();  // then they are no headers
  std::vector<WeightHeader> headers(static_cast<size_t>(tiers_.num_nodes()));
  std::memcpy(static_cast<void*>(headers.data()), headers_on_host_, static_cast<size_t>(all.bytes()));
  return headers;
}

// An abort ends the work that the event follows, but a GPU that has failed may not say so.
void WeightCrossing::wait_for(const EventPtr& event) const {
  constexpr int kLooksAtOnce = 100;
  constexpr std::chrono::microseconds kPause(30);
  for (int looks = 0; !device_.done(event); ++looks) {
    throw_if_aborted_();
    if (looks >= kLooksAtOnce) {
      std::this_thread::sleep_for(kPause);
    }
  }
  throw_if_aborted_();
}

std::string WeightCrossing::why_whole(Run& run, const std::vector<WeightHeader>& headers) const {
  const auto lacks_replica = [](const WeightHeader& header) { return header.has_replica == 0; };
  if (std::any_of(headers.begin(), headers.end(), lacks_replica)) {
    return lacks_replica(headers[static_cast<size_t>(tiers_.node())]) ? "the first gather"
                                                                      : "another rank has no replica";
  }
  std::string differing = differing_replicas(headers);
  run.weights.healed += differing.empty() ? 0 : 1;
  return differing;
}

void WeightCrossing::gather_whole(Run& run, ConstBuffer shard, Replica& replica) const {
  const Step step(run, "inter all-gather", tiers_.gather_inter_lane(), &CollectiveStats::exchange_s);
  tiers_.gather_inter().all_gather(shard, replica.shards, run.tail())->wait(run.tail());
}

void WeightCrossing::gather_packets(Run& run, ConstBuffer shard, ConstBuffer packet,
                                    const std::vector<WeightHeader>& headers, ConstBuffer in_memory, Replica& replica) {
  const int64_t num_nodes = tiers_.num_nodes();
  const auto arriving_bytes = [&](const WeightHeader& header) {
    return header.sender == tiers_.node() ? 0 : static_cast<int64_t>(header.packet_bytes);
  };
  int64_t longest = 0;
  for (const WeightHeader& header : headers) {
    longest = std::max(longest, arriving_bytes(header));
  }
  const int64_t row_bytes = weight_row_bytes(longest);
  const Buffer rows = run.take(num_nodes * row_bytes, DataType::kByte);
  std::vector<Buffer> arriving;
  arriving.reserve(headers.size());
  for (const WeightHeader& header : headers) {
    arriving.push_back(rows.slice(header.sender * row_bytes, arriving_bytes(header)));
  }
  {
    const Step step(run, "inter all-gather", tiers_.gather_inter_lane(), &CollectiveStats::exchange_s);
    tiers_.gather_inter().all_gather_uneven(packet, arriving, run.tail())->wait(run.tail());
    run.packet_bytes = (num_nodes - 1) * packet.bytes();
  }
  const Step step(run, "decode weights", Lane::kDecodeWeights, &CollectiveStats::decode_s);
  coder_->decode({.headers = in_memory,
                  .num_nodes = num_nodes,
                  .node = tiers_.node(),
                  .packets = rows,
                  .shard = shard,
                  .replica = replica.shards},
                 run.workspace(coder_->decode_scratch_bytes(shard, num_nodes)));
}

}  // namespace isthmus
