// One encoding and one decoding of weight differences on a device. docs/weights.md, docs/packet_format.md.
#pragma once

#include <cstdint>

#include "isthmus/buffer.h"
#include "kernels/block/device.h"
#include "kernels/weights/layout.h"

namespace isthmus::kernels {

// The WeightHeader (weight_packet.h) as words.
inline constexpr int kWeightHeaderWords = kWeightHeaderBytes / 8;
inline constexpr int kWeightIdentity = 0;  // magic, version, type; above 48 bits the sender
inline constexpr int kWeightGather = 2;    // the lower half; the upper is the header's checksum
inline constexpr int kWeightPacketBytes = 4;
inline constexpr int kWeightPacketChecksum = 5;
static_assert(kWeightPacketChecksum == kHeaderChecksum);  // a DeviceFault has the words up to it
inline constexpr int kWeightReplicaChecksum = 6;
inline constexpr int kWeightUpperHalf = 32;
struct WeightHeaderWords {
  uint64_t word[kWeightHeaderWords] = {};
};

struct WeightEncodeState {
  uint64_t packet_bytes = 0;
  uint32_t arrived = 0;  // groups at the end of the pass under way
};

// Writes what turns `before` into `shard`. Blocks of types that are not coded are sent whole or not at all.
struct WeightEncodeJob {
  WeightHeaderWords header;  // all but the packet's bytes and the three checksums, which are 0
  ConstBuffer before;        // the replica's copy of the shard; data null: there is none, and only the header is sent
  ConstBuffer shard;
  ConstBuffer replica;  // whole words for the header's checksum; data null: not compared now
  uint8_t* sent;        // header and packet, at a multiple of 16
  int64_t most_bytes;   // of the packet

  uint8_t* areas;         // for coded blocks: as many bytes as the elements have, and up to whole words of 8
  uint32_t* block_bytes;  // of each block; 0: unchanged
  uint64_t* places;       // of each block in the packet
  ChecksumParts parts;    // of the packet
  ChecksumParts replica_parts;
  WeightEncodeState* state;
};

struct WeightDecodeState {
  uint32_t is_refused = 0;  // 1: a fault was found, now or before
  uint32_t arrived = 0;     // groups at the end of the pass under way
};

// Turns the replica into the shards of all nodes. The host has checked the headers. Nothing is decoded before all
// packets' checksums are right. After a fault the replica has NaN where other nodes' changed shards should be.
struct WeightDecodeJob {
  static constexpr uint32_t kNoBlock = 0xffffffff;

  const WeightHeaderWords* headers;  // of all nodes
  const uint8_t* packets;            // each node's in its row, at multiples of 16; 16 bytes behind it may be read
  int64_t row_bytes;                 // a multiple of 16
  int64_t num_nodes;                 // of the rail
  int64_t node;                      // this rank's, whose row is not read; num_nodes: none of them
  ConstBuffer shard;                 // this node's
  Buffer replica;                    // the shards of all nodes
  DeviceFault* mapped_fault;         // in memory that the host sees

  uint64_t* places;      // of each block of each node
  uint32_t* bad_blocks;  // of each node: its first bad block; the number of blocks: the packet's length
  ChecksumParts parts;   // of all packets
  WeightDecodeState* state;
};

}  // namespace isthmus::kernels
