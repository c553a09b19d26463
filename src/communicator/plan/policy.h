// Decides by size, name and options which collectives take two tiers and which units are compressed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/globs.h"
#include "base/option_rows.h"
#include "isthmus/reason.h"

namespace isthmus {

// The name of a unit where other models of the group have units with that name: "root", or "root (2)" for ordinal 1.
std::string with_ordinal(std::string name, int ordinal);

// `units` is a list of globs (base/globs.h); "!" before a glob excludes. A unit is compressed if its name matches a
// glob without "!", or there is no such glob, and it matches no glob with "!". Order does not matter: "*,!*attn*",
// "!*attn*,*" and "!*attn*" are equal. A glob also matches a name without its ordinal: "!lm_head" excludes the lm_head
// of every model.
bool unit_is_compressed(const std::string& units, const std::string& name);

// Whether a collective with so many elements (whole input; for a gather output) takes two tiers.
bool is_large(const Options& options, int64_t num_elements);

// Why the options leave a unit exact; nothing: they allow compression.
std::optional<Reason> why_policy_is_exact(const Options& options, const std::string& name, int64_t num_elements);

}  // namespace isthmus
