#include "communicator/path/weight_path.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "isthmus/error.h"

namespace isthmus {
namespace {

// Whether the next gather compares replicas: the second one does, and each interval after it. 0: none does.
bool is_compared(const Replica& replica, int64_t interval) {
  const auto every = static_cast<uint64_t>(interval);
  return every > 0 && replica.gathers % every == 1 % every;
}

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

// Whether replicas differ, and counts the nodes whose ones are not what most nodes have.
std::optional<Reason> compare_replicas(const std::vector<WeightHeader>& headers, std::map<int, int64_t>& differing) {
  // The most frequent replica is taken for the right one; all replicas are replaced anyway.
  std::map<uint64_t, size_t> nodes_with;
  for (const WeightHeader& header : headers) {
    ++nodes_with[header.replica_checksum];
  }
  if (nodes_with.size() == 1) {
    return std::nullopt;
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto [usual, most] = *std::max_element(nodes_with.begin(), nodes_with.end(), fewer);
  if (2 * most <= headers.size()) {
    return Reason::kReplicasDiffer;
  }
  for (const WeightHeader& header : headers) {
    if (header.replica_checksum != usual) {
      ++differing[header.sender];
    }
  }
  return Reason::kReplicaDiffers;
}

}  // namespace

WeightPath::WeightPath(const TierSet& tiers, const Options& options, Device& device, const Path& path,
                       std::function<void()> throw_if_aborted)
    : tiers_(tiers),
      options_(options),
      device_(device),
      path_(path),
      throw_if_aborted_(std::move(throw_if_aborted)),
      coder_(make_weight_coder(device)) {}

// A Run refers to parts of the communicator, which a gather may outlive.
WeightPath::~WeightPath() {
  for (const auto& gather : under_way_) {
    gather->run.reset();
  }
}

void WeightPath::begin(const std::shared_ptr<GatherUnderWay>& gather) {
  release_abandoned();
  Run& run = *gather->run;
  if (gather->shard.num_elements == 0) {
    return;
  }
  if (tiers_.num_nodes() == 1) {
    path_.all_gather(run, gather->shard, gather->gathered);
    return;
  }
  run.weights.gathers = 1;
  if (device_.capture(run.tail()) != 0) {  // where the host cannot wait
    run.reason = Reason::kInGraph;
    run.weights.whole[Reason::kInGraph] = 1;
    path_.all_gather(run, gather->shard, gather->gathered);
    return;
  }
  const int64_t rail_elements = tiers_.num_nodes() * gather->shard.num_elements;
  if (gather->unit->replica == nullptr) {
    give_replica(*gather->unit, rail_elements);
  }
  gather->number = gather->unit->replica->gathers;
  encode(*gather);
  exchange_headers(*gather);
  under_way_.push_back(gather);
}

// Makes the replica of a unit whose rail has `num_elements` of weights. It is not valid yet.
void WeightPath::give_replica(Unit& unit, int64_t num_elements) {
  auto replica = std::make_shared<Replica>(unit.memory);
  Buffer shards{nullptr, num_elements, unit.key.dtype};
  const int64_t bytes = round_up(shards.bytes(), 8);
  try {
    replica->memory = device_.allocate(bytes);
  } catch (const std::bad_alloc&) {
    throw Error(detail::concatenate("unit \"", unit.key.name, "\": no memory for a replica of its rail's weights, ",
                                    bytes, " bytes, beside ", unit.memory->replica_bytes.load(),
                                    " bytes of other units (weights=delta)"));
  }
  shards.data = replica->memory.get();
  replica->shards = shards;
  device_.clear({shards.data, bytes, DataType::kByte}, device_.lane(Lane::kEncodeWeights));
  unit.memory->replica_bytes += bytes;
  unit.replica = std::move(replica);
}

// Frees what gathers hold that nobody can finish any more. It concerns this rank alone.
void WeightPath::release_abandoned() {
  std::erase_if(under_way_, [this](const std::shared_ptr<GatherUnderWay>& gather) {
    const bool is_abandoned = gather.use_count() == 1;
    if (is_abandoned) {
      free_headers_.push_back(gather->headers_on_host);  // later headers are copied after these
    }
    return is_abandoned;
  });
}

void WeightPath::encode(GatherUnderWay& gather) {
  Run& run = *gather.run;
  const ConstBuffer shard = gather.shard;
  const Replica& replica = *gather.unit->replica;
  gather.sent = run.take(weight_sent_bytes(shard), DataType::kByte);
  WeightEncode encode;
  encode.header.dtype = shard.dtype;
  encode.header.sender = static_cast<uint16_t>(tiers_.node());
  encode.header.unit_hash = gather.unit->hash;
  encode.header.num_elements = static_cast<uint64_t>(shard.num_elements);
  encode.header.has_replica = replica.is_valid ? 1 : 0;
  if (replica.is_valid) {
    encode.header.gather = static_cast<uint32_t>(replica.gathers);
    encode.before = replica.shards.part(tiers_.node(), shard.num_elements);
    encode.replica = is_compared(replica, options_.replica_interval) ? replica.words() : ConstBuffer{};
  }
  encode.shard = shard;
  encode.sent = gather.sent;
  const Step step(run, Phase::kCompareWeights, Lane::kEncodeWeights, &CollectiveStats::encode_s);
  if (replica.last_use != nullptr) {
    device_.wait(replica.last_use, run.tail());
  }
  coder_->encode(encode, run.workspace(coder_->encode_scratch_bytes(shard)));
}

void WeightPath::exchange_headers(GatherUnderWay& gather) {
  Run& run = *gather.run;
  const int64_t bytes = tiers_.num_nodes() * kernels::kWeightHeaderBytes;
  gather.headers = run.take(bytes, DataType::kByte);
  if (free_headers_.empty()) {
    free_headers_.push_back(device_.allocate_on_host(bytes));
  }
  gather.headers_on_host = free_headers_.back();
  free_headers_.pop_back();
  const Step step(run, Phase::kInterHeaders, tiers_.gather_inter_lane(), &CollectiveStats::exchange_s);
  const ConstBuffer own = gather.sent.slice(0, kernels::kWeightHeaderBytes);
  tiers_.gather_inter().all_gather(own, gather.headers, run.tail())->wait(run.tail());
  device_.copy_to_host(gather.headers, {gather.headers_on_host, bytes, DataType::kByte}, run.tail());
}

// An abort ends the work that the event follows, but a GPU that has failed may not say so.
void WeightPath::wait_for_headers(const EventPtr& begun) const {
  constexpr int kLooksAtOnce = 100;
  constexpr std::chrono::microseconds kPause(30);
  for (int looks = 0; !device_.done(begun); ++looks) {
    throw_if_aborted_();
    if (looks >= kLooksAtOnce) {
      std::this_thread::sleep_for(kPause);
    }
  }
  throw_if_aborted_();
}

void WeightPath::finish(GatherUnderWay& gather) {
  Run& run = *gather.run;
  Replica& replica = *gather.unit->replica;
  run.set_phase(Phase::kInterHeaders);
  ISTHMUS_CHECK(Error, gather.number == replica.gathers, "unit \"", gather.unit->key.name, "\": gather ", gather.number,
                " of its weights is waited for too late, after gather ", replica.gathers - 1);
  std::vector<WeightHeader> headers(static_cast<size_t>(tiers_.num_nodes()));
  std::memcpy(static_cast<void*>(headers.data()), gather.headers_on_host, headers.size() * sizeof(WeightHeader));
  check_headers(headers, gather.shard);
  cross(gather, headers);
  run.codec = "delta";
  path_.all_gather(run, gather.shard, gather.gathered, replica.shards);
  replica.last_use = run.event();
  free_headers_.push_back(gather.headers_on_host);
  std::erase_if(under_way_, [&](const std::shared_ptr<GatherUnderWay>& one) { return one.get() == &gather; });
}

void WeightPath::cross(GatherUnderWay& gather, const std::vector<WeightHeader>& headers) {
  Run& run = *gather.run;
  Replica& replica = *gather.unit->replica;
  const std::optional<Reason> whole = why_whole(run, headers);
  run.weights.unchanged = !whole && !has_changed(headers[static_cast<size_t>(tiers_.node())]) ? 1 : 0;
  replica.is_valid = false;  // until every shard has been updated
  if (whole) {
    gather_whole(run, gather.shard, replica);
    ++run.weights.whole[*whole];
  } else {
    run.coded_elements = (tiers_.num_nodes() - 1) * gather.shard.num_elements;
    if (std::any_of(headers.begin(), headers.end(), has_changed)) {
      gather_packets(gather, headers);
    }
  }
  replica.is_valid = true;
  for (const WeightHeader& header : headers) {  // a rank that lost its replica counts from 0 again
    replica.gathers = std::max(replica.gathers, uint64_t{header.gather});
  }
  ++replica.gathers;
}

std::optional<Reason> WeightPath::why_whole(Run& run, const std::vector<WeightHeader>& headers) const {
  const auto lacks_replica = [](const WeightHeader& header) { return header.has_replica == 0; };
  if (std::any_of(headers.begin(), headers.end(), lacks_replica)) {
    return lacks_replica(headers[static_cast<size_t>(tiers_.node())]) ? Reason::kFirstGather : Reason::kNoReplica;
  }
  const std::optional<Reason> differ = compare_replicas(headers, run.weights.differing);
  run.weights.healed += differ ? 1 : 0;
  return differ;
}

void WeightPath::gather_whole(Run& run, ConstBuffer shard, const Replica& replica) const {
  const Step step(run, Phase::kInterAllGather, tiers_.gather_inter_lane(), &CollectiveStats::exchange_s);
  tiers_.gather_inter().all_gather(shard, replica.shards, run.tail())->wait(run.tail());
}

void WeightPath::gather_packets(GatherUnderWay& gather, const std::vector<WeightHeader>& headers) {
  Run& run = *gather.run;
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
    const Step step(run, Phase::kInterAllGather, tiers_.gather_inter_lane(), &CollectiveStats::exchange_s);
    const auto own_bytes = static_cast<int64_t>(headers[static_cast<size_t>(tiers_.node())].packet_bytes);
    const ConstBuffer packet = gather.sent.slice(kernels::kWeightHeaderBytes, own_bytes);
    tiers_.gather_inter().all_gather_uneven(packet, arriving, run.tail())->wait(run.tail());
    run.packet_bytes = (num_nodes - 1) * packet.bytes();
  }
  const Step step(run, Phase::kDecodeWeights, Lane::kDecodeWeights, &CollectiveStats::decode_s);
  coder_->decode({.headers = gather.headers,
                  .num_nodes = num_nodes,
                  .node = tiers_.node(),
                  .packets = rows,
                  .shard = gather.shard,
                  .replica = gather.unit->replica->shards},
                 run.workspace(coder_->decode_scratch_bytes(gather.shard, num_nodes)));
}

}  // namespace isthmus
