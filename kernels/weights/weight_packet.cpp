#include "kernels/weights/weight_packet.h"

#include <algorithm>
#include <cstring>

#include "codec/packet_sizes.h"
#include "isthmus/error.h"
#include "kernels/block/hashes.h"
#include "kernels/checksum/cpu.h"

namespace isthmus {
namespace {

using kernels::kWeightBlockElements;
using kernels::WeightShape;

// A packet is a directory of block sizes in bytes, then the blocks, each at an even place, then zeros up to a word.
using BlockBytes = uint32_t;

// Encodes a block of a type that is not coded: it is sent whole, or not at all.
int64_t encode_bytes(ConstBuffer old_block, ConstBuffer new_block, std::byte* out) {
  const auto bytes = static_cast<size_t>(new_block.bytes());
  if (std::memcmp(old_block.data, new_block.data, bytes) == 0) {
    return 0;
  }
  std::memcpy(out, new_block.data, bytes);
  return new_block.bytes();
}

}  // namespace

void WeightHeader::seal() {
  header_checksum = 0;
  header_checksum = static_cast<uint32_t>(kernels::mix(checksum_of({this, sizeof(*this), DataType::kByte})));
}

bool WeightHeader::is_whole() const {
  WeightHeader again = *this;
  again.seal();
  return again.header_checksum == header_checksum;
}

bool WeightPackets::is_coded(DataType dtype) {
  return dtype == DataType::kBFloat16 || dtype == DataType::kFloat16 || dtype == DataType::kFloat32;
}

int64_t WeightPackets::most_bytes(ConstBuffer shard) {
  const WeightShape shape = kernels::weight_shape(shard);
  const int64_t odd_blocks = shape.num_blocks();  // bytes alone may be odd, and are padded
  return round_up(shape.directory_bytes() + shard.bytes() + odd_blocks, 8);
}

int64_t WeightPackets::encode(ConstBuffer replica, ConstBuffer shard, Buffer packet) {
  const WeightShape shape = kernels::weight_shape(shard);
  auto* const begin = packet.as<std::byte>();
  int64_t bytes = shape.directory_bytes();
  bool changed = false;
  for (int64_t block = 0; block < shape.num_blocks(); ++block) {
    const ConstBuffer before = replica.slice(block * kWeightBlockElements, shape.elements_of(block));
    const ConstBuffer now = shard.slice(block * kWeightBlockElements, shape.elements_of(block));
    const int64_t length = is_coded(shard.dtype)
                               ? kernels::weight_kernels(shard.dtype)
                                     .encode(before.data, now.data, now.num_elements, begin + bytes, *scratch_)
                               : encode_bytes(before, now, begin + bytes);
    const auto entry = static_cast<BlockBytes>(length);
    std::memcpy(begin + block * static_cast<int64_t>(sizeof(entry)), &entry, sizeof(entry));
    std::fill_n(begin + bytes + length, round_up(length, 2) - length, std::byte{});
    bytes += round_up(length, 2);
    changed |= length > 0;
  }
  const int64_t padded = round_up(bytes, 8);
  std::fill_n(begin + bytes, padded - bytes, std::byte{});
  return changed ? padded : 0;
}

void WeightPackets::decode(ConstBuffer packet, Buffer replica) {
  const WeightShape shape = kernels::weight_shape(replica);
  const int64_t packet_bytes = packet.bytes();
  const auto* const begin = packet.as<std::byte>();
  int64_t place = shape.directory_bytes();
  for (int64_t block = 0; block < shape.num_blocks(); ++block) {
    const Buffer weights = replica.slice(block * kWeightBlockElements, shape.elements_of(block));
    BlockBytes entry = 0;
    if (place <= packet_bytes) {
      std::memcpy(&entry, begin + block * static_cast<int64_t>(sizeof(entry)), sizeof(entry));
    }
    const int64_t length = entry;
    bool fits = place + length <= packet_bytes;
    if (fits && is_coded(replica.dtype)) {
      fits = kernels::weight_kernels(replica.dtype)
                 .decode(begin + place, length, weights.data, weights.num_elements, *scratch_);
    } else if (fits && length > 0) {
      fits = length == weights.bytes();
      std::memcpy(weights.data, begin + place, fits ? static_cast<size_t>(length) : 0);
    }
    ISTHMUS_CHECK(PacketError, fits, "corrupt packet of weights: block ", block, " of ", length, " bytes, at ", place,
                  " of ", packet_bytes, ", does not decode into ", weights.num_elements, " elements of ",
                  to_string(replica.dtype));
    place += round_up(length, 2);
  }
  ISTHMUS_CHECK(PacketError, round_up(place, 8) == packet_bytes, "corrupt packet of weights: ", packet_bytes,
                " bytes, of which ", place, " belong to blocks");
}

std::string text_of_damage(uint64_t node, uint64_t checksum, uint64_t expected) {
  return detail::concatenate("corrupt packet of weights from node ", node, ": its bytes have the checksum ", checksum,
                             ", but its header says ", expected);
}

uint64_t checksum_of(ConstBuffer bytes, void* copy) {
  Checksum checksum;
  if (copy == nullptr) {
    checksum.add(bytes.data, bytes.bytes());
  } else {
    checksum.copy(bytes.data, copy, bytes.bytes());
  }
  return std::max<uint64_t>(checksum.value(), 1);
}

}  // namespace isthmus
