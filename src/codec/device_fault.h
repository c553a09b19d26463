// Turns faults that a device reports into the errors of the CPU codecs.
#pragma once

#include "isthmus/packet_header.h"
#include "kernels/block/device.h"

namespace isthmus {

kernels::HeaderWords header_words(const PacketHeader& header);

// Throws the PacketError that the CPU would have thrown, if `fault` reports one. `fault` is a copy in host memory.
void throw_if_reported(const kernels::DeviceFault& fault);

}  // namespace isthmus
