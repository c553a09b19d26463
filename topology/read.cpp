#include "topology/read.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace isthmus::topology {
namespace {

constexpr size_t kMostBytes = 64 << 20;  // of a file; lstopo writes a few megabytes of the largest machines
// The place of the first byte that is no UTF-8; the size of the text: all is.
size_t first_foreign(const std::string& text) {
  for (size_t next = 0, begin = 0; begin < text.size(); begin = next) {
    const int lead = static_cast<unsigned char>(text[next++]);
    int missing = lead < 0x80 ? 0 : lead < 0xC2 ? -1 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : lead < 0xF5 ? 3 : -1;
    for (; missing > 0 && (text[next] & 0xC0) == 0x80; ++next) {  // behind the text is a zero
      --missing;
    }
    if (missing != 0) {
      return begin;
    }
  }
  return text.size();
}

}  // namespace

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
    const size_t dot = name.find('.');
    return parse_machine(contents, printable(dot == 0 ? name : name.substr(0, dot)));
  } catch (const TopologyError& error) {
    const std::string line = error.line == 0 ? "" : ", line " + std::to_string(error.line);
    throw TopologyError(path + line + ": " + error.what(), error.line);
  }
}

Machine parse_machine(const std::string& contents, const std::string& name) {
  const std::string text = contents.substr(contents.starts_with("\xEF\xBB\xBF") ? 3 : 0);
  const size_t foreign = first_foreign(text);
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<long>(foreign), '\n');
  require(foreign == text.size(), static_cast<int>(line), "is not UTF-8 text");
  const size_t begin = text.find_first_not_of(" \t\r\n");
  require(begin != std::string::npos, 0, "is empty: ", kExpected);
  Machine machine;
  if (text[begin] != '<') {
    machine = parse_smi(text);
  } else {
    const Element root = parse_xml(text);
    require(root.tag == "system" || root.tag == "topology", root.line, "is XML with root <",
            printable(root.tag).substr(0, 40), ">: ", kExpected);
    machine = root.tag == "system" ? parse_nccl(root) : parse_hwloc(text, root);
  }
  machine.name = name;
  return machine;
}

}  // namespace isthmus::topology
