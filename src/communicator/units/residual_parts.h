// Residuals by parameter. They move when a unit is reduced with other parameters than before.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "isthmus/device.h"
#include "isthmus/unit.h"

namespace isthmus {

// A stretch of a residual, and its place in the rows of the reduced tensor.
struct ResidualStretch {
  int64_t piece = 0;  // see ParkedState
  int64_t begin = 0;  // in the row
  int64_t num_elements = 0;
  int64_t offset = 0;  // in the residual
};

struct ResidualStretches {
  std::vector<ResidualStretch> pieces;
  std::vector<ResidualStretch> result;
};

// A stretch of one parameter's section.
struct ResidualPart {
  int64_t piece = 0;
  int64_t parameter = 0;
  int64_t begin = 0;  // in the section
  Buffer values;

  int64_t end() const { return begin + values.num_elements; }
  bool is_beside(const ResidualPart& other) const { return piece == other.piece && parameter == other.parameter; }
};

// A part with its own memory, which is null only in a unit that was forgotten.
struct ParkedPart {
  ResidualPart part;
  DeviceMemory memory;
};

std::vector<ResidualPart> parts_of(Buffer residual, const std::vector<ResidualStretch>& stretches,
                                   const Sections& sections);

// Whether the part has an element in common with the others.
bool overlap(const ResidualPart& part, const std::vector<ResidualPart>& others);

// Copies the elements of `to` from `from` and `parked`, and parks the rest. No element is in two of `from` and
// `parked`. Enqueued on `stream`. Throws std::bad_alloc.
void move_parts(Device& device, Stream stream, const std::vector<ResidualPart>& from,
                const std::vector<ResidualPart>& to, std::vector<ParkedPart>& parked);

// Copies the values into a part of its own.
ParkedPart park(Device& device, Stream stream, const ResidualPart& part);

// One of a unit's residuals.
struct Residual {
  Lane lane;                            // the only one that uses it
  Buffer values = {};                   // float32; empty if the codec keeps none
  DeviceMemory memory = nullptr;        // null also in a unit that was forgotten
  std::vector<ParkedPart> parked = {};  // of parameters that had no gradient in the last reduction. See ParkedState
  std::shared_ptr<ResidualGuard> guard = nullptr;  // of `values`, in the device's memory; made with them

  int64_t bytes() const;  // that have memory
};

// A unit's residuals, and what they belong to.
struct Residuals {
  UnitKey key;       // of the last reduction
  double scale = 0;  // of the last reduction; 0: none yet
  Residual pieces = {.lane = Lane::kEncode};
  Residual result = {.lane = Lane::kDecode};  // for the own chunk of an all-reduce's result; else empty

  std::array<Residual*, 2> both() { return {&pieces, &result}; }
  std::array<const Residual*, 2> both() const { return {&pieces, &result}; }
  int64_t residual_bytes() const { return pieces.bytes() + result.bytes(); }
};

// Copies residuals on the lanes that use them, into the memory of an earlier copy where that fits. Throws
// std::bad_alloc.
void copy_residuals(Device& device, const Residuals& from, Residuals& to);

// Skips what has no memory: a codec without error feedback has no residual, and a forgotten unit has lost it.
void multiply(Device& device, const Residual& residual, double factor);

}  // namespace isthmus
