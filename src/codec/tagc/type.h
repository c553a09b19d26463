// Codec `tagc`'s row of the registry.
#pragma once

#include "isthmus/codec_type.h"

namespace isthmus {

const CodecType& tagc_type();

}  // namespace isthmus
