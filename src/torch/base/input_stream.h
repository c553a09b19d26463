// On which stream of a GPU the calling thread's collectives find their inputs, if not on the current one.
#pragma once

#include <optional>

#include "isthmus/buffer.h"

namespace isthmus::torch_backend {

// Python sets it around a call. Nothing: inputs are there behind the present work of the current stream.
inline std::optional<Stream>& input_stream() {
  thread_local std::optional<Stream> stream;
  return stream;
}

}  // namespace isthmus::torch_backend
