// Which units are compressed, by name.
#pragma once

#include <string>
#include <vector>

namespace isthmus {

// The parts of comma-separated `text`, without the spaces around them.
std::vector<std::string> split_patterns(const std::string& text);

// `units` is a comma-separated list of globs as of fnmatch(3), in which "!" before a glob excludes. A unit is
// compressed if a glob without "!" matches its name, or there is none such, and no glob with "!" matches it. Order does
// not matter: "*,!*attn*" and "!*attn*,*" and "!*attn*" are equal.
bool unit_is_compressed(const std::string& units, const std::string& name);

}  // namespace isthmus
