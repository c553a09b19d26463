// The wire on the fake GPU, whose memory is the host's: everything is copied at once, and nothing waits.
#include <cstring>

#include "tests/gpu/wire/wire.h"

namespace isthmus::wire {

cudaError_t transmit(const Transfer& transfer, cudaStream_t /*stream*/) {
  for (const Part& part : transfer.parts) {
    std::memmove(part.to, part.from, static_cast<size_t>(part.bytes));
    if (part.sender >= 0 && part.bytes >= static_cast<int64_t>(sizeof(kernels::HeaderWords))) {
      auto* const words = static_cast<uint64_t*>(part.to);
      words[kernels::kHeaderElements] = readdressed(words[kernels::kHeaderElements], part.sender);
    }
  }
  return cudaSuccess;
}

}  // namespace isthmus::wire
