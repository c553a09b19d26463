#include "isthmus/codec.h"

#include "codec/none.h"
#include "codec/tagc.h"
#include "isthmus/error.h"

namespace isthmus {

CodecCounts& CodecCounts::operator+=(const CodecCounts& other) {
  encoded_elements += other.encoded_elements;
  kept_elements += other.kept_elements;
  held_back_elements += other.held_back_elements;
  estimated_elements += other.estimated_elements;
  non_finite_blocks += other.non_finite_blocks;
  return *this;
}

std::unique_ptr<Codec> make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                  int ranks_per_node) {
  if (name == "none") {
    return std::make_unique<NoneCodec>(wire_dtype, ranks_per_node);
  }
  if (name == "tagc") {
    return std::make_unique<TagcCodec>(options);
  }
  throw OptionError(detail::concatenate("codec \"", name, "\" is unknown: expected none or tagc"));
}

}  // namespace isthmus
