// Codec `none`'s row of the registry.
#pragma once

#include "isthmus/codec_type.h"

namespace isthmus {

const CodecType& none_type();

}  // namespace isthmus
