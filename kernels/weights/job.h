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

// How a gather ended.
enum class WeightVerdict : uint32_t {
  kPending = 0,
  kInPlace,         // the replica equals the shards
  kTooLong,         // a packet exceeds the capacity; the replica is unchanged
  kReplicasDiffer,  // the ranks have different bits; the replica is unchanged
  kFault,           // see WeightFault
};

// Why a packet was refused, in the order of the checks.
enum class WeightFault : uint32_t {
  kNone,
  kHeader,    // is not what this node's should be; the replica is unchanged
  kChecksum,  // is not that of the packet's bytes; the replica is unchanged
  kBlock,     // does not decode; the replica is undefined
  kLength,    // is not that of the packet's blocks; the replica is undefined
};

// What a decoding found. The device writes it to host memory, and the host never waits for it. One WeightHeaderWords
// for each node, as received, follows in memory.
struct WeightOutcome {
  uint32_t gather = 0;  // written last: 1 + the number of this outcome's gather
  WeightVerdict verdict = WeightVerdict::kPending;
  WeightFault fault = WeightFault::kNone;  // of the first node with a fault
  uint32_t fault_node = 0;
  uint64_t fault_block = 0;  // for kBlock
  uint64_t checksum = 0;     // for kChecksum: that of the bytes
  // Like `gather`; the host writes it when the device may go on, if the verdict is not kInPlace.
  uint32_t ready = 0;
};

// What is known of a coded block before it has its place.
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

// Writes what turns `before` into `shard`. Blocks of types that are not coded are sent whole or not at all.
struct WeightEncodeJob {
  WeightHeaderWords header;  // all but the packet's bytes and the three checksums, which are 0
  ConstBuffer before;        // the replica's copy of the shard
  ConstBuffer shard;
  ConstBuffer replica;  // whole words for the header's checksum; data null: not compared now
  uint8_t* sent;        // header and packet, at a multiple of 16
  int64_t capacity;     // of the packet, a multiple of 16. A longer packet is not written, but its header has its size

  uint8_t* areas;  // as many bytes for a block as its elements have: escapes from the front, words from the end
  WeightBlockParts* coded;  // of each block
  uint32_t* block_bytes;    // of each block; 0: unchanged
  uint64_t* places;         // of each block in the packet
  ChecksumParts parts;      // of the packet
  ChecksumParts replica_parts;
  WeightEncodeState* state;
};

struct WeightDecodeState {
  static constexpr uint32_t kNone = 0xffffffff;

  uint32_t is_decided = 0;                          // 1: nothing is left to decode
  WeightVerdict carries = WeightVerdict::kPending;  // why the host must carry the shards; kPending: it need not
  uint32_t is_refused = 0;                          // 1: the verdict is kFault
  uint32_t arrived = 0;                             // groups at the end of the pass under way
  uint32_t bad_node = kNone;                        // first node with a refused header
};

// Turns the replica into the shards of all nodes. Headers are checked first, and nothing is decoded before all packets'
// checksums are right. If packets do not suffice, the host carries the shards. If anything fails, later work on the
// stream waits until the host has seen it.
struct WeightDecodeJob {
  WeightHeaderWords expected;  // what all headers have, except sender, packet's bytes, checksums and coding
  int64_t most_bytes;          // of any packet
  int64_t num_nodes;           // of the rail
  int64_t node;                // this rank's
  const uint8_t* received;     // header and packet of each node, 64 + capacity bytes, at a multiple of 16
  int64_t capacity;            // a multiple of 16
  ConstBuffer shard;           // this node's
  Buffer replica;              // the shards of all nodes
  WeightOutcome* outcome;      // memory of the host
  uint8_t* outgoing;           // host memory: gets the shard before the host is told to carry it
  const uint8_t* arrived;      // host memory: the shards of all nodes, once the outcome is `ready`

  uint64_t* places;      // of each block of each node
  uint32_t* bad_blocks;  // of each node: its first bad block; the number of blocks: the packet's length
  ChecksumParts parts;   // of all packets
  WeightDecodeState* state;
};

}  // namespace isthmus::kernels
