#include "codec/device_fault.h"

#include <bit>
#include <cstddef>

#include "isthmus/error.h"

namespace isthmus {

namespace {

using kernels::FaultKind;

const char* to_string(FaultKind kind) {
  switch (kind) {
    case FaultKind::kHeader:
      return "its header differs";
    case FaultKind::kChecksum:
      return "its bytes do not have the checksum in its header";
    case FaultKind::kPadding:
      return "its padding is not zero";
    case FaultKind::kFlags:
      return "a block past the last is flagged";
    case FaultKind::kIndex:
      return "an element past the last is marked";
    case FaultKind::kEmptyBlock:
      return "a flagged block marks no element";
    case FaultKind::kDoesNotPeel:
      return "its index does not peel";
    case FaultKind::kCellsLeft:
      return "its sketch holds more than the index says";
    case FaultKind::kCounts:
      return "a block's counts do not add up to what it keeps";
    case FaultKind::kOffsets:
      return "a block's offsets do not ascend within it";
    case FaultKind::kFlaggedValues:
      return "a flagged block holds values";
  }
  return "unknown fault";
}

}  // namespace

static_assert(sizeof(PacketHeader) == sizeof(kernels::HeaderWords));
static_assert(offsetof(PacketHeader, unit_hash) == size_t{8} * kernels::kHeaderUnit);
static_assert(offsetof(PacketHeader, step) == size_t{8} * kernels::kHeaderStep);
static_assert(offsetof(PacketHeader, checksum) == size_t{8} * kernels::kHeaderChecksum);

kernels::HeaderWords header_words(const PacketHeader& header) { return std::bit_cast<kernels::HeaderWords>(header); }

void throw_if_reported(const kernels::DeviceFault& fault) {
  if (fault.reported == 0) {
    return;
  }
  const PacketHeader header = read_header(&fault.received, std::bit_cast<PacketHeader>(fault.expected));
  if (header.codec == CodecId::kNone || header.codec == CodecId::kQuant) {
    throw_wrong_checksum(header, fault.expected.word[kernels::kHeaderChecksum]);
  }
  throw PacketError(detail::concatenate("corrupt packet: ", to_string(fault.kind()), " (codec ",
                                        to_string(header.codec), ", unit ", header.unit_hash, ", step ", header.step,
                                        ", ", header.num_elements, " elements)"));
}

}  // namespace isthmus
