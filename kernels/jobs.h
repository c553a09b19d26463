// All jobs of a device: an encoding and a decoding for each codec, for tagc's single-tier form, whose indexes are
// merged between the two, and for weight differences; and work on whole buffers.
#pragma once

#include <variant>

#include "kernels/elementwise/job.h"
#include "kernels/none/job.h"
#include "kernels/quant/job.h"
#include "kernels/tagc/job.h"
#include "kernels/weights/job.h"

namespace isthmus::kernels {

using AnyJob =
    std::variant<NoneEncodeJob, NoneDecodeJob, QuantEncodeJob, QuantDecodeJob, TagcEncodeJob, TagcDecodeJob,
                 TagcFlatEncodeJob, TagcFlatMergeJob, TagcFlatDecodeJob, WeightEncodeJob, WeightDecodeJob, ConvertJob,
                 MultiplyJob, AddJob, SquaredErrorJob, DropResidualJob, SetContextsJob, NextStepJob, RefuseUnitsJob>;

}  // namespace isthmus::kernels
