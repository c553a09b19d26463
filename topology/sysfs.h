// Attributes of devices as Linux shows them under /sys. Any may be missing, unreadable or nonsense.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace isthmus::topology {

class Sysfs {
 public:
  // root: "" for a recorded machine, which has none: nothing is read.
  explicit Sysfs(std::string root) : root_(std::move(root)) {}

  bool exists() const { return !root_.empty(); }
  // One line, printable; "": missing or unreadable, as an interface's speed is while it is down.
  std::string line(const std::string& path) const;
  // What is in a folder, sorted.
  std::vector<std::string> names(const std::string& folder) const;
  // The last part of where a symbolic link leads; "": it is none.
  std::string target(const std::string& path) const;

 private:
  std::string root_;
};

// The speed of a port in what a driver says, "200 Gb/sec (4X HDR)" or Mbit/s.
std::optional<double> port_gbit_s(const std::string& text, double divisor);

}  // namespace isthmus::topology
