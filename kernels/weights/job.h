// One encoding and one decoding of weight differences on a device. docs/weights.md, docs/packet_format.md.
#pragma once

#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/device.h"

namespace isthmus::kernels {

// The 64 bytes of WeightHeader (src/codec/weights/weight_packet.h), as words.
inline constexpr int kWeightHeaderWords = 8;
inline constexpr int64_t kWeightHeaderBytes = int64_t{8} * kWeightHeaderWords;
inline constexpr int kWeightIdentity = 0;  // magic, version, type; above 48 bits the sender
inline constexpr int kWeightSenderBit = 48;
inline constexpr int kWeightUnit = 1;
inline constexpr int kWeightGather = 2;  // the lower half; the upper is the header's checksum
inline constexpr int kWeightElements = 3;
inline constexpr int kWeightPacketBytes = 4;
inline constexpr int kWeightPacketChecksum = 5;
inline constexpr int kWeightReplicaChecksum = 6;
inline constexpr int kWeightHasReplica = 7;  // the lower half; the upper is the time of coding
inline constexpr int kWeightUpperHalf = 32;
struct WeightHeaderWords {
  uint64_t word[kWeightHeaderWords] = {};
};

// What became of a gather.
enum class WeightVerdict : uint32_t {
  kPending = 0,
  kInPlace,         // the replica is what the shards are
  kTooLong,         // a packet is longer than the capacity;
  kReplicasDiffer,  // the ranks differ from other bits: in both cases the replica is what it was
  kFault,           // see WeightFault
};

// Why a packet was refused, in the order of the checks.
enum class WeightFault : uint32_t {
  kNone,
  kHeader,    // is not what is expected of its node; the replica is what it was
  kChecksum,  // is not that of the packet's bytes; the replica is what it was
  kBlock,     // does not decode; the replica is undefined
  kLength,    // is not that of the packet's blocks; the replica is undefined
};

// What a decoding found, in memory of the host that the device writes; the host never waits for it. One
// WeightHeaderWords for each node, as received, follows in memory.
struct WeightOutcome {
  uint32_t gather = 0;  // written last: 1 + the number of the gather that all else here is of
  WeightVerdict verdict = WeightVerdict::kPending;
  WeightFault fault = WeightFault::kNone;  // of the first node that has one
  uint32_t fault_node = 0;
  uint64_t fault_block = 0;  // of kBlock
  uint64_t checksum = 0;     // of kChecksum: that of the bytes
  // Written by the host, where the verdict is not kInPlace: as `gather`, once the device may go on.
  uint32_t ready = 0;
};

// What is known of a coded block before its place is.
struct WeightBlockParts {
  int8_t moved[16];
  uint16_t states[16];
  uint16_t num_escapes;
  uint16_t unused;
  uint32_t num_words;
};

struct WeightEncodeState {
  uint64_t packet_bytes = 0;
  uint32_t arrived = 0;  // groups at the end of the pass under way
};

// Writes what turns `before` into `shard`. Blocks of types that are not coded are sent whole, or not at all.
struct WeightEncodeJob {
  WeightHeaderWords header;  // all but the packet's bytes and the three checksums, which are 0
  ConstBuffer before;        // the shard as the replica has it
  ConstBuffer shard;
  ConstBuffer replica;  // whole words: its checksum is the header's. data null: it is not compared now
  uint8_t* sent;        // header and packet, at a multiple of 16
  int64_t capacity;     // of the packet, a multiple of 16. One that is longer is not written; its header has its size

  uint8_t* areas;           // of each block as many bytes as its elements: escapes from the front, words from the end
  WeightBlockParts* coded;  // of each block
  uint32_t* block_bytes;    // of each block. 0: it did not change
  uint64_t* places;         // of each block in the packet
  ChecksumParts parts;      // of the packet
  ChecksumParts replica_parts;
  WeightEncodeState* state;
};

struct WeightDecodeState {
  static constexpr uint32_t kNone = 0xffffffff;

  uint32_t is_decided = 0;                          // 1: there is nothing left to decode
  WeightVerdict carries = WeightVerdict::kPending;  // why the host has to carry the shards; kPending: it does not
  uint32_t is_refused = 0;                          // 1: the verdict is kFault
  uint32_t arrived = 0;                             // groups at the end of the pass under way
  uint32_t bad_node = kNone;                        // the first whose header is refused
};

// Turns the replica into the shards of all nodes. Headers are checked first; nothing is decoded before all packets'
// checksums are right. Where packets do not do, the host carries the shards; whatever has gone wrong, what follows on
// the stream waits until the host has seen it.
struct WeightDecodeJob {
  WeightHeaderWords expected;  // what all headers have, but for the sender, the packet's bytes, checksums, and coding
  int64_t most_bytes;          // of any packet
  int64_t num_nodes;           // of the rail
  int64_t node;                // this rank's
  const uint8_t* received;     // for each node header and packet, of 64 + capacity bytes, at a multiple of 16
  int64_t capacity;            // a multiple of 16
  ConstBuffer shard;           // this node's
  Buffer replica;              // the shards of all nodes
  WeightOutcome* outcome;      // memory of the host
  uint8_t* outgoing;           // memory of the host: becomes the shard before the host is told to carry it
  const uint8_t* arrived;      // memory of the host: the shards of all nodes, once the outcome is `ready`

  uint64_t* places;      // of each block of each node
  uint32_t* bad_blocks;  // of each node the first block that does not decode; the number of blocks: the packet's length
  ChecksumParts parts;   // of all packets
  WeightDecodeState* state;
};

}  // namespace isthmus::kernels
