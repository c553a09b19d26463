// The host's part of weight differences on a device. The device's part is in kernels/weights/run_passes.h.
#include <bit>

#include "base/rounding.h"
#include "codec/device_jobs.h"
#include "codec/gpu_device.h"
#include "isthmus/error.h"
#include "kernels/weights/job.h"
#include "kernels/weights/weight_coder.h"

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

// Returns the bytes used.
int64_t carve(kernels::WeightEncodeJob& job, ConstBuffer shard, void* memory) {
  Carver carver(memory);
  const int64_t num_blocks = kernels::weight_shape(shard).num_blocks();
  job.state = carver.take<kernels::WeightEncodeState>(1);
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(1));
  job.replica_parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(1));
  job.places = carver.take<uint64_t>(num_blocks);
  job.block_bytes = carver.take<uint32_t>(num_blocks);
  carver.align();
  job.areas = carver.take<uint8_t>(WeightPackets::is_coded(shard.dtype) ? round_up(shard.bytes(), 8) : 0);
  return carver.bytes();
}

int64_t carve(kernels::WeightDecodeJob& job, ConstBuffer shard, int64_t num_nodes, void* memory) {
  Carver carver(memory);
  const int64_t num_blocks = kernels::weight_shape(shard).num_blocks();
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(num_nodes));
  job.places = carver.take<uint64_t>(num_nodes * num_blocks);
  job.bad_blocks = carver.take<uint32_t>(num_nodes);
  job.state = carver.take<kernels::WeightDecodeState>(1);
  return carver.bytes();
}

class GpuWeightCoder final : public WeightCoder {
 public:
  explicit GpuWeightCoder(DeviceLauncher& launcher) : launcher_(launcher) {}

  int64_t encode_scratch_bytes(ConstBuffer shard) const override {
    kernels::WeightEncodeJob job = {};
    return carve(job, shard, nullptr);
  }
  void encode(const WeightEncode& encode, Workspace workspace) override {
    kernels::WeightEncodeJob job = {};
    job.header = words_of(without_results(encode.header));
    job.before = encode.before;
    job.shard = encode.shard;
    job.replica = encode.replica;
    job.sent = encode.sent.as<uint8_t>();
    job.most_bytes = WeightPackets::most_bytes(encode.shard);
    check_memory("memory to be sent", encode.sent, kernels::kWeightHeaderBytes + job.most_bytes);
    check_like("shard", encode.shard, encode.shard, encode.shard.num_elements);
    if (encode.before.data != nullptr) {
      check_like("old shard", encode.before, encode.shard, encode.shard.num_elements);
    }
    ISTHMUS_CHECK(Error, encode.replica.bytes() % 8 == 0, kName, ": a replica of ", encode.replica.bytes(),
                  " bytes, where whole words of 8 are needed");
    check_memory("replica", encode.replica, 0);
    check_memory("scratch memory", workspace.scratch, carve(job, encode.shard, workspace.scratch.data));
    launcher_.run(job, workspace.stream);
  }

  int64_t decode_scratch_bytes(ConstBuffer shard, int64_t num_nodes) const override {
    kernels::WeightDecodeJob job = {};
    return carve(job, shard, num_nodes, nullptr);
  }
  void decode(const WeightDecode& decode, Workspace workspace) override {
    ISTHMUS_CHECK(Error, decode.node >= 0 && decode.node <= decode.num_nodes, kName, ": node ", decode.node, " of ",
                  decode.num_nodes);
    kernels::WeightDecodeJob job = {};
    job.headers = decode.headers.as<kernels::WeightHeaderWords>();
    job.packets = decode.packets.as<uint8_t>();
    job.row_bytes = decode.packets.bytes() / decode.num_nodes;
    job.num_nodes = decode.num_nodes;
    job.node = decode.node;
    job.shard = decode.shard;
    job.replica = decode.replica;
    ISTHMUS_CHECK(Error, decode.packets.bytes() % (decode.num_nodes * kPair) == 0, kName, ": packets of ",
                  decode.packets.bytes(), " bytes, where ", decode.num_nodes, " rows of a multiple of ", kPair,
                  " are needed");
    check_memory("headers", decode.headers, decode.num_nodes * kernels::kWeightHeaderBytes);
    check_memory("packets", decode.packets, 0);
    check_like("shard", decode.shard, decode.shard, decode.shard.num_elements);
    check_like("replica", decode.replica, decode.shard, decode.num_nodes * decode.shard.num_elements);
    check_memory("scratch memory", workspace.scratch,
                 carve(job, decode.shard, decode.num_nodes, workspace.scratch.data));
    launcher_.run(job, workspace.stream);
  }

 private:
  DeviceLauncher& launcher_;
};

std::string text_of_fault(const kernels::DeviceFault& fault) {
  const auto node = static_cast<uint64_t>(fault.packet());
  const uint64_t found = fault.expected.word[kernels::kWeightPacketChecksum];
  if (fault.kind() == kernels::FaultKind::kChecksum) {
    return text_of_damage(node, found, fault.received.word[kernels::kWeightPacketChecksum]);
  }
  const std::string packet = detail::concatenate("corrupt packet of weights from node ", node, ": ");
  if (fault.kind() == kernels::FaultKind::kBlock) {
    return detail::concatenate(packet, "block ", found, " does not decode");
  }
  return detail::concatenate(packet, fault.received.word[kernels::kWeightPacketBytes],
                             " bytes are not those of its blocks");
}

}  // namespace

std::unique_ptr<WeightCoder> make_weight_coder_of_gpu(DeviceLauncher& launcher) {
  return std::make_unique<GpuWeightCoder>(launcher);
}

void throw_if_any_reported(const kernels::DeviceFault& fault) {
  const auto identity = static_cast<uint32_t>(fault.expected.word[kernels::kWeightIdentity]);
  if (fault.reported != 0 && identity == WeightHeader::kMagic) {
    throw PacketError(text_of_fault(fault));
  }
  throw_if_reported(fault);
}

}  // namespace isthmus
