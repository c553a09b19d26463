// What crosses of a shard of weights: the difference to what crossed before, bit for bit. docs/weights.md,
// docs/packet_format.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "isthmus/buffer.h"

namespace isthmus {

// What the ranks of a rail tell each other before packets cross: little-endian, copied as it is.
struct WeightHeader {
  static constexpr uint32_t kMagic = 0x57485349;  // "ISHW"
  static constexpr uint8_t kVersion = 2;

  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  DataType dtype = DataType::kByte;
  uint16_t sender = 0;  // node
  uint64_t unit_hash = 0;
  uint32_t gather = 0;           // of this unit, from 0 on; 0 without a replica
  uint32_t header_checksum = 0;  // seal()
  uint64_t num_elements = 0;     // of the shard
  uint64_t packet_bytes = 0;     // 0: the shard is what it was. Without a packet: the shard's
  uint64_t packet_checksum = 0;
  uint64_t replica_checksum = 0;  // of what the sender takes the shards of its rail to have been; 0: not compared now
  uint32_t has_replica = 0;       // 0 or 1
  uint32_t reserved = 0;

  void seal();            // once all else is set
  bool is_whole() const;  // whether it is as it was sealed
};
static_assert(sizeof(WeightHeader) == 64);

// Weights of bfloat16, float16 and float32 are coded; shards of other types are sent whole, or not at all.
// A packet is a multiple of 8 bytes, at most 1% longer than the shard, or 64 bytes. Not for several threads at once.
class WeightPackets {
 public:
  WeightPackets();
  ~WeightPackets();

  // Blocks of other types are sent whole, or not at all.
  static bool is_coded(DataType dtype);
  // The most bytes that a packet of this shard takes.
  static int64_t most_bytes(ConstBuffer shard);
  // Behind a packet: memory that is written or read as well, whatever is in it.
  static constexpr int64_t kMarginBytes = 128;

  // Writes what turns `replica` into `shard`; returns its bytes. 0: they are equal, bit for bit. `packet`: of
  // most_bytes(shard) and the margin.
  int64_t encode(ConstBuffer replica, ConstBuffer shard, Buffer packet);
  // Turns `replica` into the sender's shard. Throws PacketError if no encoder makes such a packet; then `replica` is
  // undefined. The margin lies behind `packet`.
  void decode(ConstBuffer packet, Buffer replica);

 private:
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

// The text of a PacketError: the bytes of a packet have another checksum than its header says.
std::string text_of_damage(uint64_t node, uint64_t checksum, const WeightHeader& header);

// The checksum of memory, which has a multiple of 8 bytes: the one that packets carry; never 0.
uint64_t checksum_of(ConstBuffer bytes);

}  // namespace isthmus
