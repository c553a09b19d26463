// Option `units`: a list of globs that name units, as people write it and as messages do.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace isthmus {

// A list is separated by commas, and spaces around its globs do not count. In a glob, as in fnmatch(3) without escapes,
// "*", "?" and "[" have a meaning. A character in brackets stands for itself, and a comma there separates nothing: the
// unit of three modules "embed, norm, head" is "embed[,] norm[,] head", and "blocks.0 [2]" is "blocks.0 [[]2]".
inline std::vector<std::string> split_globs(const std::string& list) {
  std::vector<std::string> globs(1);
  for (size_t i = 0; i < list.size(); ++i) {
    size_t end = i;
    if (list[i] == '[') {
      // "]" as the first one stands for itself; brackets that do not end are none.
      const size_t first = i + (list.compare(i + 1, 1, "!") == 0 || list.compare(i + 1, 1, "^") == 0 ? 2 : 1);
      const size_t closing = list.find(']', first + 1);
      end = closing == std::string::npos ? i : closing;
    }
    if (list[i] == ',') {
      globs.emplace_back();
    } else {
      globs.back() += list.substr(i, end - i + 1);
    }
    i = end;
  }
  for (std::string& glob : globs) {
    glob.erase(glob.find_last_not_of(' ') + 1);
    glob.erase(0, glob.find_first_not_of(' '));
  }
  return globs;
}

// Returns the glob that `name` alone matches, to be printed: whoever pastes it into a list, behind a "!" or not, means
// this unit. (Of a name that begins with "!" any other first character would match, too.)
inline std::string glob_of(std::string_view name) {
  std::string glob;
  for (size_t i = 0; i < name.size(); ++i) {
    const char letter = name[i];
    const bool is_outer = i == 0 || i + 1 == name.size();
    if (letter == '!' && i == 0) {
      glob += '?';
    } else if (letter == '*' || letter == '?' || letter == '[' || letter == ',' || (letter == ' ' && is_outer)) {
      glob.append({'[', letter, ']'});
    } else {
      glob += letter;
    }
  }
  return glob;
}

}  // namespace isthmus
