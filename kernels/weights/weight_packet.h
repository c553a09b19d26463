// Encodes a shard of weights as its bit-exact difference to what crossed before. See docs/weights.md and
// docs/packet_format.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "isthmus/buffer.h"
#include "kernels/weights/layout.h"

namespace isthmus {

// What the ranks of a rail tell each other before packets cross. Little-endian, and copied as it is.
struct WeightHeader {
  static constexpr uint32_t kMagic = 0x57485349;  // "ISHW"
  static constexpr uint8_t kVersion = 3;

  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  DataType dtype = DataType::kByte;
  uint16_t sender = 0;  // number of the node
  uint64_t unit_hash = 0;
  uint32_t gather = 0;           // number of this unit's gather, from 0 on; 0 without a replica
  uint32_t header_checksum = 0;  // which seal() sets
  uint64_t num_elements = 0;     // of the shard
  uint64_t packet_bytes = 0;     // 0: the shard has not changed. Without a replica: the shard's bytes
  uint64_t packet_checksum = 0;
  uint64_t replica_checksum = 0;  // of the sender's replica of all shards of its rail; 0: not compared now
  uint32_t has_replica = 0;       // 0 or 1
  uint32_t reserved = 0;

  void seal();            // called once all else is set
  bool is_whole() const;  // whether nothing has changed since seal()
};
static_assert(sizeof(WeightHeader) == kernels::kWeightHeaderBytes);

// Codes bfloat16, float16 and float32; a shard of another type is sent whole, or not at all. A packet is a multiple of
// 8 bytes, and longer than the shard by at most 1% or 64 bytes. Each thread needs its own object.
class WeightPackets {
 public:
  // Whether shards of the type are coded.
  static bool is_coded(DataType dtype);
  // The most bytes that a packet of this shard can have.
  static int64_t most_bytes(ConstBuffer shard);
  // Memory that must lie behind a packet: it may be read or written, and its contents do not matter.
  static constexpr int64_t kMarginBytes = 16;

  // Writes what turns `replica` into `shard`, and returns its bytes; 0 if they are equal, bit for bit. `packet` has
  // room for most_bytes(shard) and the margin.
  int64_t encode(ConstBuffer replica, ConstBuffer shard, Buffer packet);
  // Turns `replica` into the sender's shard. The margin lies behind `packet`. Throws PacketError for a packet that no
  // encoder makes; `replica` is then undefined.
  void decode(ConstBuffer packet, Buffer replica);

 private:
  std::unique_ptr<kernels::WeightScratch> scratch_ = std::make_unique<kernels::WeightScratch>();
};

// The text of a PacketError about a packet whose checksum is not the one that its header has.
std::string text_of_damage(uint64_t node, uint64_t checksum, uint64_t expected);

// The checksum that packets carry, of a multiple of 8 bytes of memory; never 0. Copies them to `copy`, if there is one.
uint64_t checksum_of(ConstBuffer bytes, void* copy = nullptr);

}  // namespace isthmus
