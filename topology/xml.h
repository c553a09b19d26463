// The XML of machine files: elements and attributes. Text between elements is skipped.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace isthmus::topology {

// line: where it begins.
struct Element {
  std::string tag;
  std::map<std::string, std::string> attributes;
  int line = 0;
  std::vector<Element> children;

  std::vector<const Element*> all(const std::string& of_tag) const;
  // An attribute, printable; "": it is missing or empty.
  std::string text(const std::string& name) const;
  // A decimal number, or a hexadecimal one with 0x; `absent` where it is missing. Throws TopologyError for what is no
  // number from `least` to `most`.
  long long integer(const std::string& name, long long least, long long most, long long absent) const;
};

// The root. Throws TopologyError, with the line, for what is not well-formed, declares entities, or nests too deep. It
// borrows nothing.
Element parse_xml(const std::string& text);

}  // namespace isthmus::topology
