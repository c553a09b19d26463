// Codec `sparse`'s row of the registry.
#pragma once

#include "isthmus/codec_type.h"

namespace isthmus {

const CodecType& sparse_type();

}  // namespace isthmus
