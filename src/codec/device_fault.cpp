// Turns faults that a device reports into the errors of the CPU codecs.
#include <bit>
#include <cstddef>

#include "codec/device_jobs.h"
#include "codec/registry.h"
#include "isthmus/error.h"

namespace isthmus {

const char* text_of(kernels::FaultKind kind) {
  using kernels::FaultKind;
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
    case FaultKind::kBlock:
    case FaultKind::kLength:
    case FaultKind::kUnits:
      break;  // these have errors of their own
  }
  return "unknown fault";
}

static_assert(sizeof(PacketHeader) == sizeof(kernels::HeaderWords));
static_assert(offsetof(PacketHeader, unit_hash) == size_t{8} * kernels::kHeaderUnit);
static_assert(offsetof(PacketHeader, step) == size_t{8} * kernels::kHeaderStep);
static_assert(offsetof(PacketHeader, checksum) == size_t{8} * kernels::kHeaderChecksum);

kernels::HeaderWords header_words(const PacketHeader& header) { return std::bit_cast<kernels::HeaderWords>(header); }

void throw_if_reported(const kernels::DeviceFault& fault) {
  if (fault.reported == 0) {
    return;
  }
  if (fault.kind() == kernels::FaultKind::kUnits) {
    throw PacketError(detail::concatenate("unit ", fault.expected.word[kernels::kHeaderUnit], ": rank ", fault.packet(),
                                          " of the group reduces another unit (",
                                          fault.received.word[kernels::kHeaderUnit],
                                          "), or other parameters of it: ", kWhyUnitsDiffer));
  }
  const PacketHeader header = read_header(&fault.received, std::bit_cast<PacketHeader>(fault.expected));
  const CodecType* type = codec_or_null(header.codec);
  if (type != nullptr && type->checksum_of != nullptr) {
    throw_wrong_checksum(header, fault.expected.word[kernels::kHeaderChecksum]);
  }
  throw PacketError(detail::concatenate("corrupt packet: ", text_of(fault.kind()), " ", text_of(header)));
}

}  // namespace isthmus
