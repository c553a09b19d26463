// The XML of machine files: elements and attributes. Text between elements is skipped.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "topology/read.h"

namespace isthmus::topology {
namespace {

constexpr size_t kMostLevels = 512;
constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kNoName = " \t\r\n<>=/\"'&";  // ends a name

class Parser {
 public:
  explicit Parser(const std::string& text) : rest_(text) {}

  Element document() {
    Element above;
    std::vector<Element*> open = {&above};
    while (to_next_tag()) {
      require(open.size() > 1 || above.children.empty(), "more than one root");
      if (rest_.starts_with('/')) {
        advance(1);
        require(open.size() > 1 && name() == open.back()->tag && (blanks(), rest_.starts_with('>')), "mismatched tag");
        open.pop_back();
        continue;
      }
      topology::require(open.size() <= kMostLevels, line_, "elements nest more than ", kMostLevels, " deep");
      Element& element = open.back()->children.emplace_back();
      element.line = line_;
      element.tag = name();
      for (blanks(); !rest_.starts_with('>') && !rest_.starts_with("/>"); blanks()) {
        attribute(element);
      }
      if (rest_.starts_with('>')) {
        open.push_back(&element);
      }
    }
    require(open.size() == 1 && !above.children.empty(), "an element does not end");
    return std::move(above.children[0]);
  }

 private:
  void require(bool holds, const char* what) const { topology::require(holds, line_, "is no well-formed XML: ", what); }

  void advance(size_t length) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + static_cast<long>(length), '\n'));
    rest_.remove_prefix(length);
  }

  std::string until(std::string_view end, const char* what) {
    const size_t at = rest_.find(end);
    require(at != std::string_view::npos, what);
    const std::string found(rest_.substr(0, at));
    advance(at + end.size());
    return found;
  }

  void blanks() { advance(std::min(rest_.find_first_not_of(kBlanks), rest_.size())); }

  std::string name() {
    const size_t length = std::min(rest_.find_first_of(kNoName), rest_.size());
    require(length != 0 && (rest_[0] < '0' || rest_[0] > '9'), "a name is missing");
    const std::string found(rest_.substr(0, length));
    advance(length);
    return found;
  }

  // Behind the next <, over text, comments, instructions and a document type; false: there is none.
  bool to_next_tag() {
    while (true) {
      advance(std::min(rest_.find('<'), rest_.size()));
      if (rest_.starts_with("<!--")) {
        until("-->", "a comment does not end");
      } else if (rest_.starts_with("<?")) {
        until("?>", "an instruction does not end");
      } else if (const int begin = line_; rest_.starts_with("<!")) {
        const bool is_plain = until(">", "a declaration does not end").find('[') == std::string::npos;
        topology::require(is_plain, begin, "declares XML entities, which descriptions of machines do not need");
      } else {
        advance(std::min<size_t>(rest_.size(), 1));
        return !rest_.empty();
      }
    }
  }

  void attribute(Element& element) {
    const std::string key = name();
    blanks();
    require(rest_.starts_with('='), "an attribute has no value");
    advance(1);
    blanks();
    const std::string quote(rest_.substr(0, 1));
    require(quote == "\"" || quote == "'", "a value has no quotes");
    advance(1);
    const std::string value = until(quote, "a value does not end");
    require(value.find('<') == std::string::npos, "a value holds <");
    require(element.attributes.emplace(key, unescaped(value)).second, "an attribute is given twice");
  }

  std::string unescaped(std::string value) const {
    static const std::map<std::string, std::string> kNamed = {
        {"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"apos", "'"}};
    for (size_t at = value.find('&'); at != std::string::npos; at = value.find('&', at + 1)) {
      const size_t end = std::min(value.find(';', at), value.size());
      const std::string reference = value.substr(at + 1, end - at - 1);
      const auto named = kNamed.find(reference);
      require(named != kNamed.end() || reference.starts_with('#'), "an unknown entity");
      // No name that a machine needs is written by number: printable() makes a question mark of it.
      value.replace(at, end + 1 - at, named == kNamed.end() ? "\x01" : named->second);
    }
    return value;
  }

  std::string_view rest_;
  int line_ = 1;
};

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
  return found == attributes.end() ? "" : printable(found->second);
}

long long Element::integer(const std::string& name, long long least, long long most, long long absent) const {
  const std::string value = text(name);
  if (value.empty()) {
    return absent;
  }
  char* end = nullptr;
  const bool is_hexadecimal = value.starts_with("0x") || value.starts_with("0X");
  const long long number = std::strtoll(value.c_str(), &end, is_hexadecimal ? 16 : 10);
  require(*end == '\0' && value.size() < 19 && number >= least && number <= most, line, "<", printable(tag), "> has ",
          name, "='", value.substr(0, 40), "': expected an integer from ", least, " to ", most);
  return number;
}

Element parse_xml(const std::string& text) { return Parser(text).document(); }

}  // namespace isthmus::topology
