// Turns faults that a device reports into the errors of the CPU codecs.
#include <bit>
#include <cstddef>

#include "codec/device_jobs.h"
#include "codec/registry.h"
#include "isthmus/error.h"

namespace isthmus {

namespace {

using kernels::FaultKind;

// The text of a fault: one that every codec has, or one of the codec's own.
const char* fault_text(FaultKind kind, const CodecType* type) {
  if (kind == FaultKind::kHeader) {
    return "its header differs";
  }
  if (kind == FaultKind::kChecksum) {
    return "its bytes do not have the checksum in its header";
  }
  if (kind == FaultKind::kPadding) {
    return "its padding is not zero";
  }
  const bool has_own = type != nullptr && type->fault_text != nullptr;
  const char* text = has_own ? type->fault_text(static_cast<uint32_t>(kind)) : nullptr;
  return text == nullptr ? "unknown fault" : text;
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
  const CodecType* type = codec_or_null(header.codec);
  if (type != nullptr && type->checksum_of != nullptr) {
    throw_wrong_checksum(header, fault.expected.word[kernels::kHeaderChecksum]);
  }
  throw PacketError(detail::concatenate("corrupt packet: ", fault_text(fault.kind(), type), " (codec ",
                                        to_string(header.codec), ", unit ", header.unit_hash, ", step ", header.step,
                                        ", ", header.num_elements, " elements)"));
}

}  // namespace isthmus
