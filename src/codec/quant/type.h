// Codec `quant`'s row of the registry.
#pragma once

#include "isthmus/codec_type.h"

namespace isthmus {

const CodecType& quant_type();

}  // namespace isthmus
