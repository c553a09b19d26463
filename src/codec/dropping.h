// Common to codecs that drop all but a share of the elements: tagc and sparse.
#pragma once

#include <string>

#include "isthmus/options.h"

namespace isthmus {

// A bound for all values: kept elements have at least the mean square of the dropped ones.
inline double error_of_dropping(const Options& options) { return options.sparsity; }

inline double bits_of_value(const std::string& type) { return type == "fp32" ? 32 : type == "int8" ? 8 : 16; }

}  // namespace isthmus
