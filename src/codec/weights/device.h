// Weight differences on a device: the host's part. kernels/weights/sequence.h has the device's.
#pragma once

#include <cstdint>
#include <string>

#include "codec/weights/weight_packet.h"
#include "kernels/weights/job.h"

namespace isthmus {

// The arguments of an encoding. All memory is the device's and stays as long as the stream works on it; each shard
// begins at a multiple of its elements' size, all else at a multiple of 16 bytes.
struct WeightEncode {
  WeightHeader header;  // the job fills in the packet's bytes and all checksums
  ConstBuffer before;   // what the replica holds of this node, of the type and size of `shard`
  ConstBuffer shard;
  ConstBuffer replica;  // whole words of 8 bytes, to be compared among the ranks; empty: not now
  Buffer sent;          // header and packet, a multiple of 16 bytes. Its size decides how long a packet may be
  Buffer scratch;       // contents do not matter
};
int64_t weight_encode_scratch_bytes(ConstBuffer shard);
// Throws Error for wrong types, sizes and alignments.
kernels::WeightEncodeJob make_weight_encode_job(const WeightEncode& encode);

// The arguments of a decoding, likewise. `outcome` and `ready` are memory of the host that the device writes: they
// stay, and the outcome is not reused, until the gather's number shows there.
struct WeightDecode {
  WeightHeader expected;  // of any node
  int64_t num_nodes = 0;  // of the rail
  int64_t node = 0;       // this rank's
  ConstBuffer received;   // what all nodes sent, in their order
  ConstBuffer shard;
  Buffer replica;                             // the shards of all nodes, in their order
  kernels::WeightOutcome* outcome = nullptr;  // of weight_outcome_bytes()
  std::byte* outgoing = nullptr;              // memory of the host for a shard
  const std::byte* arrived = nullptr;         // memory of the host for the shards of all nodes
  Buffer scratch;
};
int64_t weight_outcome_bytes(int64_t num_nodes);
int64_t weight_decode_scratch_bytes(ConstBuffer shard, int64_t num_nodes);
kernels::WeightDecodeJob make_weight_decode_job(const WeightDecode& decode);

// The header that was received of a node. The outcome is complete.
WeightHeader received_header(const kernels::WeightOutcome& outcome, int64_t node);
// Why the gather was refused, for a PacketError; "": it was not.
std::string text_of_fault(const kernels::WeightOutcome& outcome);

}  // namespace isthmus
