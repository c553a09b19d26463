// Which collectives take the two-tier paths, and which units are compressed: by size, name and options alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/options.h"

namespace isthmus {

// The parts of comma-separated `text`, without the spaces around them.
std::vector<std::string> split_patterns(const std::string& text);

// The name of a unit, where other models of the group have units of that name, too: "root", "root (2)" for ordinal 1.
std::string with_ordinal(std::string name, int ordinal);

// `units` is a comma-separated list of globs as of fnmatch(3), in which "!" before a glob excludes. A unit is
// compressed if a glob without "!" matches its name, or there is no such glob, and no glob with "!" matches it. Order
// does not matter: "*,!*attn*", "!*attn*,*" and "!*attn*" are equal. A glob matches a name that has an ordinal without
// it, too: "!lm_head" excludes the lm_head of every model.
bool unit_is_compressed(const std::string& units, const std::string& name);

// Whether a collective takes two tiers whose whole input (of a gather: output) has so many elements.
bool is_large(const Options& options, int64_t num_elements);
// Why a collective that is not large stays exact.
inline constexpr const char* kTooSmall = "below min_elements";

// Why the options leave a unit exact, as a string literal; null: they do not.
const char* why_policy_is_exact(const Options& options, const std::string& name, int64_t num_elements);

}  // namespace isthmus
