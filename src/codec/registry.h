// The registry of codecs, for the rest of the core. See isthmus/codec_type.h.
#pragma once

#include <string>

#include "isthmus/codec_type.h"

namespace isthmus {

// Null: there is none.
const CodecType* codec_or_null(const std::string& name);
const CodecType* codec_or_null(CodecId id);

// By id, the order in which texts list them.
std::vector<const CodecType*> codec_types_by_id();

// {"a", "b", "c"} -> "a, b or c".
std::string listed(const std::vector<std::string>& names);

}  // namespace isthmus
