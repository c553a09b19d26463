// The registry of codecs, for the rest of the core. See isthmus/codec_type.h.
#pragma once

#include <string>

#include "isthmus/codec_type.h"

namespace isthmus {

// The rows of Isthmus's own codecs.
const CodecType& none_type();
const CodecType& quant_type();
const CodecType& tagc_type();

// Null if there is no such codec.
const CodecType* codec_or_null(const std::string& name);
const CodecType* codec_or_null(CodecId id);

// Sorted by id, the order in which texts list codecs.
std::vector<const CodecType*> codec_types_by_id();

}  // namespace isthmus
