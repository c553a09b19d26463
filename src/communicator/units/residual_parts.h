// Residuals by parameter. They move when a unit is reduced with other parameters than before.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "communicator/run/tier_set.h"
#include "isthmus/device.h"
#include "isthmus/unit.h"

namespace isthmus {

// How many elements one unit's residuals have on this rank.
struct ResidualSizes {
  int64_t pieces_elements = 0;
  int64_t result_elements = 0;
};

// For a unit whose codec keeps residuals.
ResidualSizes residual_sizes(const TierSet& tiers, bool is_flat, const UnitKey& key);

// A stretch of one parameter's section.
struct ResidualPart {
  int64_t piece = 0;  // see ParkedState
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

// One of a unit's residuals.
struct Residual {
  Lane lane;                            // the only one that uses it
  Buffer values = {};                   // float32; empty if the codec keeps none
  DeviceMemory memory = nullptr;        // null also in a unit that was forgotten
  std::vector<ParkedPart> parked = {};  // of parameters that had no gradient in the last reduction. See ParkedState
  std::shared_ptr<ResidualGuard> guard = nullptr;  // of `values`, in the device's memory; made with them

  int64_t bytes() const;  // that have memory
  // Gives it values of zeros. They are written on its lane. Throws Error that names unit and bytes if memory is
  // lacking.
  void make(Device& device, const UnitKey& key, int64_t num_elements);
  // Gives the residual of a forgotten unit memory of zeros again.
  void revive(Device& device, const UnitKey& key);
  // Skips what has no memory: a codec without error feedback has no residual, and a forgotten unit has lost it.
  void multiply(Device& device, double factor) const;
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

// The parts of one of a unit's residuals, which has the elements of `key` with its sections: that of pieces, or that of
// the result.
std::vector<ResidualPart> parts_of(const TierSet& tiers, const UnitKey& key, Buffer residual, bool of_result);

// Whether the part has an element in common with the others.
bool overlap(const ResidualPart& part, const std::vector<ResidualPart>& others);

// Copies the elements of `to` from `from` and `parked`, and parks the rest. No element is in two of `from` and
// `parked`. Enqueued on `stream`. Throws std::bad_alloc.
void move_parts(Device& device, Stream stream, const std::vector<ResidualPart>& from,
                const std::vector<ResidualPart>& to, std::vector<ParkedPart>& parked);

}  // namespace isthmus
