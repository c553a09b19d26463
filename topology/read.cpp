#include "topology/read.h"

#include <expat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

namespace isthmus::topology {
namespace {

constexpr size_t kMostBytes = 64 << 20;  // of a file; lstopo writes a few megabytes of the largest machines
constexpr size_t kMostLevels = 64;       // of XML; real machines have about 20, and readers recurse

// XML while Expat reads it. Text between elements is skipped.
struct Document {
  XML_Parser parser = nullptr;
  Element above;
  std::vector<Element*> open = {&above};
  std::string error;

  void stop(const std::string& why) {
    error = why;
    XML_StopParser(parser, XML_FALSE);
  }
};

void begin_element(void* to, const char* tag, const char** attribute) {
  auto& document = *static_cast<Document*>(to);
  if (document.open.size() > kMostLevels) {
    return document.stop("elements nest more than " + std::to_string(kMostLevels) + " deep");
  }
  Element& element = document.open.back()->children.emplace_back();
  element.tag = printable(tag);
  element.line = static_cast<int>(XML_GetCurrentLineNumber(document.parser));
  for (; *attribute != nullptr; attribute += 2) {
    element.attributes.emplace(attribute[0], printable(attribute[1]));
  }
  document.open.push_back(&element);
}

void end_element(void* to, const char*) {
  auto& document = *static_cast<Document*>(to);
  if (document.error.empty()) {
    document.open.pop_back();
  }
}

void declare_entity(void* to, const char*, int, const char*, int, const char*, const char*, const char*, const char*) {
  static_cast<Document*>(to)->stop("declares XML entities, which descriptions of machines do not need");
}

Element parse_xml(const std::string& text) {
  const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(XML_ParserCreate("UTF-8"), &XML_ParserFree);
  Document document;
  document.parser = parser.get();
  XML_SetUserData(parser.get(), &document);
  XML_SetElementHandler(parser.get(), &begin_element, &end_element);
  XML_SetEntityDeclHandler(parser.get(), &declare_entity);
  const bool is_read = XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()), XML_TRUE) == XML_STATUS_OK;
  const auto line = static_cast<int>(XML_GetCurrentLineNumber(parser.get()));
  require(document.error.empty(), line, document.error);
  require(is_read, line, "is no well-formed XML: ", XML_ErrorString(XML_GetErrorCode(parser.get())));
  return std::move(document.above.children[0]);
}

}  // namespace

std::vector<const Element*> Element::all(const std::string& of_tag) const {
  std::vector<const Element*> found;
  for (const Element& child : children) {
    if (child.tag == of_tag) {
      found.push_back(&child);
    }
  }
  return found;
}

std::string Element::text(const std::string& name) const {
  const auto found = attributes.find(name);
  return found == attributes.end() ? "" : found->second;
}

long long Element::integer(const std::string& name, long long least, long long most, long long absent) const {
  const std::string value = text(name);
  if (value.empty()) {
    return absent;
  }
  char* end = nullptr;
  const long long number = std::strtoll(value.c_str(), &end, value.starts_with("0x") ? 16 : 10);
  require(*end == '\0' && value.size() < 19 && number >= least && number <= most, line, "<", tag, "> has ", name, "='",
          value.substr(0, 40), "': expected an integer from ", least, " to ", most);
  return number;
}

Machine read_machine(const std::string& path) {
  try {
    std::error_code error;
    require(!std::filesystem::is_directory(path, error), 0, "cannot be read: Is a directory");
    std::ifstream file(path, std::ios::binary);
    require(file.is_open(), 0, "cannot be read: ", std::strerror(errno));
    std::string contents(kMostBytes + 1, '\0');
    file.read(contents.data(), static_cast<std::streamsize>(contents.size()));
    contents.resize(static_cast<size_t>(file.gcount()));
    require(contents.size() <= kMostBytes, 0, "has more than ", kMostBytes, " bytes");
    const std::string name = std::filesystem::path(path).filename();
    return parse_machine(contents, printable(name.substr(0, name.find('.', 1))));
  } catch (const TopologyError& error) {
    const std::string line = error.line == 0 ? "" : ", line " + std::to_string(error.line);
    throw TopologyError(path + line + ": " + error.what(), error.line);
  }
}

Machine parse_machine(const std::string& contents, const std::string& name) {
  const std::string text = contents.substr(contents.starts_with("\xEF\xBB\xBF") ? 3 : 0);
  const size_t begin = text.find_first_not_of(" \t\r\n");
  require(begin != std::string::npos, 0, "is empty: ", kExpected);
  Machine machine;
  if (text[begin] != '<') {
    machine = parse_smi(text);
  } else {
    const Element root = parse_xml(text);
    require(root.tag == "system" || root.tag == "topology", root.line, "is XML with root <", root.tag.substr(0, 40),
            ">: ", kExpected);
    machine = root.tag == "system" ? parse_nccl(root) : parse_hwloc(text, root);
  }
  machine.name = name;
  return machine;
}

}  // namespace isthmus::topology
