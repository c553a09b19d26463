#include "communicator/path/weight_crossing.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "isthmus/error.h"
#include "kernels/weights/job.h"

namespace isthmus {
namespace {

bool has_changed(const WeightHeader& header) { return header.packet_bytes > 0; }

// headers: by node. Throws PacketError if one is corrupt, or they do not belong to one gather of a shard like this.
void check_headers(const std::vector<WeightHeader>& headers, ConstBuffer shard) {
  // Headers are compared with that of a rank that counted the unit's gathers, or with any if none did.
  const auto has_replica = [](const WeightHeader& header) { return header.has_replica != 0; };
  const auto counted = std::find_if(headers.begin(), headers.end(), has_replica);
  const WeightHeader& first = counted != headers.end() ? *counted : headers.front();
  const auto most = static_cast<uint64_t>(WeightPackets::most_bytes(shard));
  for (size_t node = 0; node < headers.size(); ++node) {
    const WeightHeader& header = headers[node];
    const auto expect_equal = [&](const char* what, uint64_t value, uint64_t expected) {
      ISTHMUS_CHECK(PacketError, value == expected, "weights of node ", node, " have ", what, " ", value, ", where ",
                    expected, " is expected (unit ", first.unit_hash, ", gather ", first.gather,
                    "): the ranks do not gather the same weights in the same order, or the header is corrupt");
    };
    expect_equal("magic", header.magic, WeightHeader::kMagic);
    expect_equal("version", header.version, WeightHeader::kVersion);  // first: it decides what a checksum is
    ISTHMUS_CHECK(PacketError, header.is_whole(), "corrupt header of the weights of node ", node);
    expect_equal("sending node", header.sender, node);
    expect_equal("unit", header.unit_hash, first.unit_hash);
    expect_equal("dtype", static_cast<uint64_t>(header.dtype), static_cast<uint64_t>(first.dtype));
    expect_equal("number of elements", header.num_elements, first.num_elements);
    expect_equal("gather", has_replica(header) ? header.gather : first.gather, first.gather);
    expect_equal("odd bytes", header.packet_bytes % 8, 0);
    ISTHMUS_CHECK(PacketError, header.packet_bytes <= most, "weights of node ", node, " take ", header.packet_bytes,
                  " bytes, where ", most, " is the most");
  }
}

// Names the nodes whose replicas differ from most nodes' ones; empty: all compared replicas are equal.
std::string differing_replicas(const std::vector<WeightHeader>& headers) {
  // The report takes the most frequent replica for the right one; all replicas are replaced anyway.
  std::map<uint64_t, size_t> nodes_with;
  for (const WeightHeader& header : headers) {
    ++nodes_with[header.replica_checksum];
  }
  if (nodes_with.size() == 1) {
    return "";
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [usual, most] = *std::max_element(nodes_with.begin(), nodes_with.end(), fewer);
  if (2 * most <= headers.size()) {
    return "replicas had other bits on each node";
  }
  std::string nodes;
  for (const WeightHeader& header : headers) {
    nodes += header.replica_checksum == usual ? "" : (nodes.empty() ? "" : ", ") + std::to_string(header.sender);
  }
  return "the replica of node " + nodes + " had other bits than the others'";
}

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
  check_headers(headers, shard);
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
