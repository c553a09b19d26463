// Arithmetic of the fake NCCL.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <vector>

namespace isthmus::fake_gpu {

// Gives up on a type that NCCL does not have.
size_t bytes_of(ncclDataType_t dtype);

// *scalar, of a floating type.
double read_scalar(const void* scalar, ncclDataType_t dtype);

// A rank's part of a reduction. Its values are multiplied by `factor` first (floating types).
struct Summand {
  const void* values;
  double factor = 1;
};

// out[i] = the reduction of element i of all summands, in their order: of 16-bit types in float, rounded once.
// `out` may be one of the summands. ncclAvg: the sum divided by the number of summands.
void reduce(const std::vector<Summand>& summands, ncclRedOp_t op, ncclDataType_t dtype, int64_t count, void* out);

}  // namespace isthmus::fake_gpu
