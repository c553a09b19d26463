#include "codec/registry.h"

#include <algorithm>
#include <atomic>

#include "base/option_rows.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

struct Registry {
  // From the exact codec to the one that may lose most; their options are listed in this order.
  std::vector<const CodecType*> types = {&none_type(), &quant_type(), &tagc_type()};
  std::atomic<bool> was_read = false;
};

Registry& registry() {
  static Registry registry;
  return registry;
}

template <typename Is>
const CodecType* find(const std::vector<const CodecType*>& types, const Is& is) {
  const auto found = std::ranges::find_if(types, [&is](const CodecType* type) { return is(*type); });
  return found == types.end() ? nullptr : *found;
}

}  // namespace

const std::vector<const CodecType*>& codec_types() {
  registry().was_read = true;
  return registry().types;
}

const CodecType* codec_or_null(const std::string& name) {
  return find(codec_types(), [&](const CodecType& type) { return name == type.name; });
}

const CodecType* codec_or_null(CodecId id) {
  return find(codec_types(), [id](const CodecType& type) { return id == type.id; });
}

const CodecType& find_codec(const std::string& name) {
  const CodecType* type = codec_or_null(name);
  ISTHMUS_CHECK(OptionError, type != nullptr, "codec \"", name, "\" is unknown: expected ",
                rows::listed(codec_names()));
  return *type;
}

std::vector<const CodecType*> codec_types_by_id() {
  std::vector<const CodecType*> types = codec_types();
  std::ranges::sort(types, {}, &CodecType::id);
  return types;
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const CodecType* type : codec_types_by_id()) {
    names.emplace_back(type->name);
  }
  return names;
}

const char* to_string(CodecId id) {
  const CodecType* type = codec_or_null(id);
  return type == nullptr ? "unknown" : type->name;
}

void register_codec(const CodecType& type) {
  const std::string name = type.name == nullptr ? "" : type.name;
  ISTHMUS_CHECK(OptionError, !name.empty(), "codec \"\": that is no name of a codec");
  const auto number = static_cast<int>(type.id);
  constexpr auto kFirst = static_cast<int>(CodecId::kFirstOutside);
  ISTHMUS_CHECK(OptionError, number >= kFirst, "codec ", name, ": id ", number, " is not from ", kFirst, " to 255");
  ISTHMUS_CHECK(OptionError, type.make_on_host != nullptr, "codec ", name, ": needs make_on_host");
  std::vector<const CodecType*>& types = registry().types;
  ISTHMUS_CHECK(OptionError, !find(types, [&](const CodecType& other) { return name == other.name; }), "codec ", name,
                " is registered already");
  const CodecType* same_id = find(types, [&](const CodecType& other) { return type.id == other.id; });
  ISTHMUS_CHECK(OptionError, same_id == nullptr, "codec ", name, ": id ", number, " is that of codec ", same_id->name);
  ISTHMUS_CHECK(OptionError, !registry().was_read, "codec ", name,
                " is registered too late: codecs are registered before anything else of Isthmus is used");
  types.push_back(&type);
}

}  // namespace isthmus
