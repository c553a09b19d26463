#include "communicator/path/gpu_weight_crossing.h"

#include <algorithm>
#include <utility>

namespace isthmus {
namespace {

// Rows of packets and parts of mapped memory begin at multiples of this, in bytes.
constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

GpuWeightCrossing::GpuWeightCrossing(const TierSet& tiers, const Options& options, GpuDevice& device,
                                     Statistics& statistics, std::function<void(const std::string&)> fail)
    : tiers_(tiers), options_(options), device_(device), watch_(tiers.host_inter(), statistics, std::move(fail)) {}

void GpuWeightCrossing::cross(Run& run, ConstBuffer shard, const UnitKey& unit, Replica& replica) {
  const int64_t num_nodes = tiers_.num_nodes();
  if (replica.watched == nullptr) {
    replica.watched = std::make_shared<WatchedUnit>();
    replica.watched->key = unit;
    replica.watched->shard = {nullptr, shard.num_elements, shard.dtype};
    replica.watched->places = take_mapped(WatchedUnit::kPlaces * weight_outcome_bytes(num_nodes));
  }
  make_room(shard);
  const auto number = static_cast<int64_t>(replica.gathers);
  const int64_t capacity =
      watch_.capacity(*replica.watched, number, aligned(WeightPackets::most_bytes(shard)), run.weights);
  const int64_t row_bytes = static_cast<int64_t>(sizeof(WeightHeader)) + capacity;
  const Buffer sent = run.take(row_bytes, DataType::kByte);
  const Buffer received = run.take(num_nodes * row_bytes, DataType::kByte);
  const WeightHeader header = make_header(shard, replica);
  {
    const Step step(run, "compare weights", Lane::kEncode, &CollectiveStats::encode_s);
    if (replica.last_use != nullptr) {
      run.device().wait(replica.last_use, run.tail());
    }
    device_.passes().launcher.run(
        make_weight_encode_job(
            {.header = header,
             .before = replica.shards.part(tiers_.node(), shard.num_elements),
             .shard = shard,
             .replica = replica.is_compared(options_.replica_interval) ? replica.words() : ConstBuffer{},
             .sent = sent,
             .scratch = run.take(weight_encode_scratch_bytes(shard), DataType::kByte)}),
        run.tail());
  }
  {
    const Step step(run, "inter all-gather", tiers_.gather_inter_lane(), &CollectiveStats::exchange_s);
    tiers_.gather_inter().all_gather(sent, received, run.tail())->wait(run.tail());
  }
  WatchedGather gather;
  gather.unit = replica.watched;
  gather.number = number;
  gather.outgoing = {room_, shard.num_elements, shard.dtype};
  gather.arrived = {room_ + aligned(shard.bytes()), num_nodes * shard.num_elements, shard.dtype};
  std::byte* const arrived = gather.arrived.as<std::byte>();
  watch_.watch(std::move(gather));  // before enqueuing: if anything fails from now on, the watch lets the GPU go on
  {
    const Step step(run, "decode weights", Lane::kDecode, &CollectiveStats::decode_s);
    device_.passes().launcher.run(
        make_weight_decode_job({.expected = header,
                                .num_nodes = num_nodes,
                                .node = tiers_.node(),
                                .received = received,
                                .shard = shard,
                                .replica = replica.shards,
                                .outcome = &replica.watched->place(number, num_nodes),
                                .outgoing = room_,
                                .arrived = arrived,
                                .scratch = run.take(weight_decode_scratch_bytes(shard, num_nodes), DataType::kByte)}),
        run.tail());
  }
  ++replica.gathers;
}

void GpuWeightCrossing::finish(Run& run, Replica& replica) { replica.last_use = run.event(); }

WeightHeader GpuWeightCrossing::make_header(ConstBuffer shard, const Replica& replica) const {
  WeightHeader header;
  header.dtype = shard.dtype;
  header.sender = static_cast<uint16_t>(tiers_.node());
  header.unit_hash = replica.hash;
  header.gather = static_cast<uint32_t>(replica.gathers);
  header.num_elements = static_cast<uint64_t>(shard.num_elements);
  header.has_replica = 1;
  return header;
}

// Outcomes are small and many, so several share one allocation.
std::byte* GpuWeightCrossing::take_mapped(int64_t bytes) {
  constexpr int64_t kPieceBytes = int64_t{64} * 1024;
  if (free_bytes_ < bytes) {
    free_bytes_ = std::max(kPieceBytes, bytes);
    mapped_.push_back(device_.allocate_mapped(free_bytes_));
    free_ = mapped_.back().get();
  }
  free_bytes_ -= bytes;
  return std::exchange(free_, free_ + bytes);
}

void GpuWeightCrossing::make_room(ConstBuffer shard) {
  const int64_t bytes = aligned(shard.bytes()) + tiers_.num_nodes() * shard.bytes();
  if (bytes > room_bytes_) {
    mapped_.push_back(device_.allocate_mapped(bytes));
    room_ = mapped_.back().get();
    room_bytes_ = bytes;
  }
}

}  // namespace isthmus
