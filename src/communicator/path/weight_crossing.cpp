#include "communicator/path/weight_crossing.h"

#include <algorithm>
#include <cstring>

#include "communicator/path/weight_headers.h"

namespace isthmus {
namespace {

bool has_changed(const WeightHeader& header) { return header.packet_bytes > 0; }

}  // namespace

void WeightCrossing::cross(Run& run, ConstBuffer shard, Replica& replica) {
  const Buffer packet = run.take(WeightPackets::most_bytes(shard) + WeightPackets::kMarginBytes, DataType::kByte);
  WeightHeader own = make_header(run, shard, replica, packet);
  own.seal();
  const std::vector<WeightHeader> headers = exchange(run, own);
  check_weight_headers(headers, shard);
  const std::string whole = why_whole(run, headers);
  const bool any_changed = std::any_of(headers.begin(), headers.end(), has_changed);
  run.weights.unchanged = whole.empty() && !has_changed(own) ? 1 : 0;
  run.weights.gathers = 1;
  replica.is_valid = false;  // until every shard has been updated
  if (!whole.empty()) {
    gather_whole(run, shard, replica);
    ++run.weights.whole[whole];
  } else {
    run.coded_elements = (tiers_.num_nodes() - 1) * shard.num_elements;
    if (any_changed) {
      gather_packets(run, shard, packet, headers, replica);
    }
  }
  replica.is_valid = true;
  for (const WeightHeader& header : headers) {  // a rank that lost its replica counts from 0 again
    replica.gathers = std::max(replica.gathers, uint64_t{header.gather});
  }
  ++replica.gathers;
}

WeightHeader WeightCrossing::make_header(Run& run, ConstBuffer shard, const Replica& replica, Buffer packet) {
  const Step step(run, "compare weights", Lane::kEncode, &CollectiveStats::encode_s);
  WeightHeader header;
  header.dtype = shard.dtype;
  header.sender = static_cast<uint16_t>(tiers_.node());
  header.unit_hash = replica.hash;
  header.num_elements = static_cast<uint64_t>(shard.num_elements);
  header.has_replica = replica.is_valid ? 1 : 0;
  if (!replica.is_valid) {
    return header;
  }
  header.gather = static_cast<uint32_t>(replica.gathers);
  if (replica.is_compared(options_.replica_interval)) {
    header.replica_checksum = checksum_of(replica.words());
  }
  const ConstBuffer before = replica.shards.part(tiers_.node(), shard.num_elements);
  header.packet_bytes = static_cast<uint64_t>(packets_.encode(before, shard, packet));
  header.packet_checksum = checksum_of(packet.slice(0, static_cast<int64_t>(header.packet_bytes)));
  return header;
}

std::vector<WeightHeader> WeightCrossing::exchange(Run& run, const WeightHeader& own) const {
  const Step step(run, "inter all-gather of headers", tiers_.gather_inter_lane(), &CollectiveStats::exchange_s);
  std::vector<WeightHeader> headers(static_cast<size_t>(tiers_.num_nodes()));
  const Buffer all{headers.data(), static_cast<int64_t>(headers.size() * sizeof(own)), DataType::kByte};
  tiers_.gather_inter().all_gather({&own, sizeof(own), DataType::kByte}, all, run.tail())->wait(run.tail());
  return headers;
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
                                    const std::vector<WeightHeader>& headers, Replica& replica) {
  const auto own = static_cast<size_t>(tiers_.node());
  std::vector<Buffer> arrived;
  for (const WeightHeader& header : headers) {
    const auto bytes = static_cast<int64_t>(header.sender == own ? 0 : header.packet_bytes);
    arrived.push_back(run.take(bytes + WeightPackets::kMarginBytes, DataType::kByte).slice(0, bytes));
  }
  {
    const Step step(run, "inter all-gather", tiers_.gather_inter_lane(), &CollectiveStats::exchange_s);
    const auto own_bytes = static_cast<int64_t>(headers[own].packet_bytes);
    tiers_.gather_inter().all_gather_uneven(packet.slice(0, own_bytes), arrived, run.tail())->wait(run.tail());
    run.packet_bytes = (tiers_.num_nodes() - 1) * own_bytes;
  }
  const Step step(run, "decode weights", Lane::kDecode, &CollectiveStats::decode_s);
  for (size_t node = 0; node < headers.size(); ++node) {
    const Buffer piece = replica.shards.part(static_cast<int64_t>(node), shard.num_elements);
    if (node == own) {
      std::memcpy(piece.data, shard.data, static_cast<size_t>(shard.bytes()));
    } else if (has_changed(headers[node])) {
      const uint64_t checksum = checksum_of(arrived[node]);
      if (checksum != headers[node].packet_checksum) {
        throw PacketError(text_of_damage(node, checksum, headers[node]));
      }
      packets_.decode(arrived[node], piece);
    }
  }
}

}  // namespace isthmus
