#include "codec/weights/device.h"

#include <bit>

#include "codec/carver.h"
#include "codec/device_jobs.h"
#include "isthmus/error.h"
#include "kernels/weights/layout.h"

namespace isthmus {
namespace {

constexpr const char* kName = "weights";
constexpr int64_t kPair = 16;  // bytes that passes load at once

static_assert(sizeof(WeightHeader) == sizeof(kernels::WeightHeaderWords));

kernels::WeightHeaderWords words_of(const WeightHeader& header) {
  return std::bit_cast<kernels::WeightHeaderWords>(header);
}

// Clears all that passes write, as it is before them.
WeightHeader without_results(WeightHeader header) {
  header.packet_bytes = header.packet_checksum = header.replica_checksum = 0;
  header.header_checksum = 0;
  return header;
}

void check_memory(const char* what, ConstBuffer buffer, int64_t needed, int64_t alignment = kPair) {
  check_device_memory(kName, what, buffer, needed, static_cast<uintptr_t>(alignment));
}

void check_like(const char* what, ConstBuffer buffer, ConstBuffer shard, int64_t num_elements) {
  ISTHMUS_CHECK(Error, buffer.dtype == shard.dtype && buffer.num_elements == num_elements, kName, ": ", what, " of ",
                buffer.num_elements, " elements of ", to_string(buffer.dtype), ", where ", num_elements, " of ",
                to_string(shard.dtype), " are needed");
  check_memory(what, buffer, buffer.bytes(), element_bytes(shard.dtype));
}

// The room for blocks in what one node sends or receives.
int64_t capacity_of(const char* what, int64_t bytes) {
  const int64_t capacity = bytes - kernels::kWeightHeaderBytes;
  ISTHMUS_CHECK(Error, capacity >= 0 && capacity % kPair == 0, kName, ": ", what, " of ", bytes,
                " bytes, where a header of ", kernels::kWeightHeaderBytes, " and a multiple of ", kPair, " are needed");
  return capacity;
}

// Returns the bytes used.
int64_t carve(kernels::WeightEncodeJob& job, ConstBuffer shard, void* memory) {
  Carver carver(memory);
  const int64_t num_blocks = kernels::num_weight_blocks(shard.num_elements);
  job.state = carver.take<kernels::WeightEncodeState>(1);
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(1));
  job.replica_parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(1));
  job.places = carver.take<uint64_t>(num_blocks);
  job.block_bytes = carver.take<uint32_t>(num_blocks);
  job.coded = carver.take<kernels::WeightBlockParts>(num_blocks);
  carver.align();
  job.areas = carver.take<uint8_t>(WeightPackets::is_coded(shard.dtype) ? shard.bytes() : 0);
  return carver.bytes();
}

int64_t carve(kernels::WeightDecodeJob& job, ConstBuffer shard, int64_t num_nodes, void* memory) {
  Carver carver(memory);
  const int64_t num_blocks = kernels::num_weight_blocks(shard.num_elements);
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(num_nodes));
  job.places = carver.take<uint64_t>(num_nodes * num_blocks);
  job.bad_blocks = carver.take<uint32_t>(num_nodes);
  job.state = carver.take<kernels::WeightDecodeState>(1);
  return carver.bytes();
}

}  // namespace

int64_t weight_encode_scratch_bytes(ConstBuffer shard) {
  kernels::WeightEncodeJob job = {};
  return carve(job, shard, nullptr);
}

kernels::WeightEncodeJob make_weight_encode_job(const WeightEncode& encode) {
  kernels::WeightEncodeJob job = {};
  job.header = words_of(without_results(encode.header));
  job.before = encode.before;
  job.shard = encode.shard;
  job.replica = encode.replica;
  job.sent = encode.sent.as<uint8_t>();
  job.capacity = capacity_of("memory to be sent", encode.sent.bytes());
  check_memory("memory to be sent", encode.sent, encode.sent.bytes());
  check_like("shard", encode.shard, encode.shard, encode.shard.num_elements);
  check_like("old shard", encode.before, encode.shard, encode.shard.num_elements);
  ISTHMUS_CHECK(Error, encode.replica.bytes() % 8 == 0, kName, ": a replica of ", encode.replica.bytes(),
                " bytes, where whole words of 8 are needed");
  check_memory("replica", encode.replica, 0);
  check_memory("scratch memory", encode.scratch, carve(job, encode.shard, encode.scratch.data));
  return job;
}

int64_t weight_outcome_bytes(int64_t num_nodes) {
  return static_cast<int64_t>(sizeof(kernels::WeightOutcome)) + num_nodes * kernels::kWeightHeaderBytes;
}

int64_t weight_decode_scratch_bytes(ConstBuffer shard, int64_t num_nodes) {
  kernels::WeightDecodeJob job = {};
  return carve(job, shard, num_nodes, nullptr);
}

kernels::WeightDecodeJob make_weight_decode_job(const WeightDecode& decode) {
  ISTHMUS_CHECK(Error, decode.node >= 0 && decode.node < decode.num_nodes, kName, ": node ", decode.node, " of ",
                decode.num_nodes);
  kernels::WeightDecodeJob job = {};
  job.expected = words_of(decode.expected);
  job.most_bytes = WeightPackets::most_bytes(decode.shard);
  job.num_nodes = decode.num_nodes;
  job.node = decode.node;
  job.received = decode.received.as<uint8_t>();
  job.capacity = capacity_of("received memory of each node", decode.received.bytes() / decode.num_nodes);
  job.shard = decode.shard;
  job.replica = decode.replica;
  job.outcome = decode.outcome;
  job.outgoing = reinterpret_cast<uint8_t*>(decode.outgoing);
  job.arrived = reinterpret_cast<const uint8_t*>(decode.arrived);
  check_memory("received memory", decode.received, decode.num_nodes * (kernels::kWeightHeaderBytes + job.capacity));
  check_like("shard", decode.shard, decode.shard, decode.shard.num_elements);
  check_like("replica", decode.replica, decode.shard, decode.num_nodes * decode.shard.num_elements);
  check_memory("scratch memory", decode.scratch, carve(job, decode.shard, decode.num_nodes, decode.scratch.data));
  return job;
}

WeightHeader received_header(const kernels::WeightOutcome& outcome, int64_t node) {
  return std::bit_cast<WeightHeader>(reinterpret_cast<const kernels::WeightHeaderWords*>(&outcome + 1)[node]);
}

std::string text_of_fault(const kernels::WeightOutcome& outcome) {
  const uint64_t node = outcome.fault_node;
  const WeightHeader header = received_header(outcome, outcome.fault_node);
  const auto of_packet = [&](const auto&... what) {
    return detail::concatenate("corrupt packet of weights from node ", node, ": ", what...);
  };
  switch (outcome.fault) {
    case kernels::WeightFault::kNone:
      return "";
    case kernels::WeightFault::kHeader:
      return detail::concatenate(
          "corrupt header of weights, or the ranks do not gather the same weights in the same order: unit ",
          header.unit_hash, ", gather ", header.gather, ", ", header.num_elements, " elements of node ", header.sender,
          " (node ", node, ")");
    case kernels::WeightFault::kChecksum:
      return text_of_damage(node, outcome.checksum, header);
    case kernels::WeightFault::kBlock:
      return of_packet("block ", outcome.fault_block, " does not decode");
    case kernels::WeightFault::kLength:
      return of_packet(header.packet_bytes, " bytes are not those of its blocks");
  }
  return "";
}

}  // namespace isthmus
