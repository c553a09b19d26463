// The host's part of weight differences on a device. The device's part is in kernels/weights/sequence.h.
#pragma once

#include <cstdint>
#include <string>

#include "codec/weights/weight_packet.h"
#include "kernels/weights/job.h"

namespace isthmus {

// The arguments of an encoding. All memory is the device's and stays as long as the stream works on it. Each shard
// begins at a multiple of its elements' size, everything else at a multiple of 16 bytes.
struct WeightEncode {
  WeightHeader header;  // the job fills in the packet's bytes and all checksums
  ConstBuffer before;   // the replica's part for this node, in the type and size of `shard`
  ConstBuffer shard;
  ConstBuffer replica;  // whole words of 8 bytes, which ranks compare; empty: not compared now
  Buffer sent;          // header and packet, a multiple of 16 bytes. Its size decides how long a packet may be
  Buffer scratch;       // contents do not matter
};
int64_t weight_encode_scratch_bytes(ConstBuffer shard);
// Throws Error for wrong types, sizes and alignments.
kernels::WeightEncodeJob make_weight_encode_job(const WeightEncode& encode);

// The arguments of a decoding. The device writes `outcome`, which is in host memory. It stays, and is not used again,
// until the gather's number shows in it.
struct WeightDecode {
  WeightHeader expected;  // what every node's header must have
  int64_t num_nodes = 0;  // of the rail
  int64_t node = 0;       // this rank's
  ConstBuffer received;   // what all nodes sent, in their order
  ConstBuffer shard;
  Buffer replica;                             // shards of all nodes, by node
  kernels::WeightOutcome* outcome = nullptr;  // of weight_outcome_bytes()
  std::byte* outgoing = nullptr;              // host memory for a shard
  const std::byte* arrived = nullptr;         // host memory for the shards of all nodes
  Buffer scratch;
};
int64_t weight_outcome_bytes(int64_t num_nodes);
int64_t weight_decode_scratch_bytes(ConstBuffer shard, int64_t num_nodes);
kernels::WeightDecodeJob make_weight_decode_job(const WeightDecode& decode);

// The header that a node sent. The outcome must be complete.
WeightHeader received_header(const kernels::WeightOutcome& outcome, int64_t node);
// Why the gather was refused, for a PacketError; empty: it was not.
std::string text_of_fault(const kernels::WeightOutcome& outcome);

}  // namespace isthmus
