// Makes the job that measures a codec's error on a device.
#pragma once

#include "isthmus/device.h"
#include "isthmus/error.h"
#include "kernels/values/squared_error_job.h"

namespace isthmus {

inline constexpr int64_t kSquaredErrorScratchBytes = kernels::kSquaredErrorParts * sizeof(kernels::SquaresOf);

// totals: `error`, by its address on the device. Throws Error for wrong types and sizes.
inline kernels::SquaredErrorJob make_squared_error_job(ConstBuffer given, ConstBuffer decoded, SquaredError* totals,
                                                       Buffer scratch) {
  ISTHMUS_CHECK(Error, given.dtype == DataType::kFloat32 && decoded.dtype == DataType::kFloat32,
                "squared error: elements of ", to_string(given.dtype), " and ", to_string(decoded.dtype),
                ", which must be float32");
  ISTHMUS_CHECK(Error, given.num_elements == decoded.num_elements, "squared error: ", given.num_elements,
                " elements given, ", decoded.num_elements, " decoded");
  ISTHMUS_CHECK(Error, scratch.bytes() >= kSquaredErrorScratchBytes, "squared error: scratch memory of ",
                scratch.bytes(), " bytes where ", kSquaredErrorScratchBytes, " are needed");
  // A lock-free atomic of the size of its value is stored as that value (checked in device.h).
  return {.given = given.as<float>(),
          .decoded = decoded.as<float>(),
          .num_elements = given.num_elements,
          .parts = scratch.as<kernels::SquaresOf>(),
          .given_total = reinterpret_cast<double*>(&totals->given),
          .dropped_total = reinterpret_cast<double*>(&totals->dropped)};
}

}  // namespace isthmus
