#include "topology/sysfs.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "topology/machine.h"

namespace isthmus::topology {

std::string Sysfs::line(const std::string& path) const {
  std::string text;
  if (exists()) {
    std::ifstream file(root_ + path);
    std::getline(file, text);
  }
  return printable(text);
}

std::vector<std::string> Sysfs::names(const std::string& folder) const {
  std::vector<std::string> found;
  std::error_code error;
  std::filesystem::directory_iterator at(root_ + folder, error);
  for (const std::filesystem::directory_iterator end; exists() && !error && at != end; at.increment(error)) {
    found.push_back(at->path().filename());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string Sysfs::target(const std::string& path) const {
  std::error_code error;
  return exists() ? std::filesystem::read_symlink(root_ + path, error).filename().string() : "";
}

std::optional<double> port_gbit_s(const std::string& text, double divisor) {
  char* end = nullptr;
  const double speed = std::strtod(text.c_str(), &end) / divisor;
  return end != text.c_str() && speed > 0 && speed <= kMostGbitS ? std::optional(speed) : std::nullopt;
}

}  // namespace isthmus::topology
