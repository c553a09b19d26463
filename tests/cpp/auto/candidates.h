// Candidates of auto by what they are called.
#pragma once

#include <stdexcept>
#include <string>

#include "auto/chooser.h"

namespace isthmus::test {

inline Candidate named(const std::string& label) {
  for (const Candidate candidate : candidates()) {
    if (to_string(candidate) == label) {
      return candidate;
    }
  }
  throw std::out_of_range(label);
}

inline Candidate quant(int bits) { return named("quant " + std::to_string(bits) + " bit"); }

}  // namespace isthmus::test
