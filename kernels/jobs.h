// Everything that a device can be asked to encode or decode: two jobs a codec.
#pragma once

#include <variant>

#include "kernels/none/job.h"
#include "kernels/quant/job.h"
#include "kernels/sparse/job.h"
#include "kernels/tagc/job.h"

namespace isthmus::kernels {

using Job = std::variant<NoneEncodeJob, NoneDecodeJob, QuantEncodeJob, QuantDecodeJob, SparseEncodeJob, SparseDecodeJob,
                         TagcEncodeJob, TagcDecodeJob>;

}  // namespace isthmus::kernels
