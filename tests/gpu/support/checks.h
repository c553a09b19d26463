// Checks that tell of themselves: each a line of JSON on standard output, as tests/gpu/harness/records.py reads it.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace isthmus::gpu {

// What was measured, in the order in which it is shown.
using Figures = std::vector<std::pair<std::string, double>>;

// Thrown by a check that cannot be made here; what(): why.
class NotRun : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws std::runtime_error with `what` unless the condition holds.
void require(bool condition, const std::string& what);

class Checks {
 public:
  // only: of checks that are run, a part of their names; any if it is empty.
  explicit Checks(std::vector<std::string> only = {}) : only_(std::move(only)) {}

  // Whether any check has failed so far, or none was run.
  bool failed() const { return failed_ || !ran_; }

  // Runs `body`, which throws where something is wrong, and tells how it went.
  void run(const std::string& name, const std::function<void()>& body);
  void measure(const std::string& name, const std::function<Figures()>& body);

 private:
  const std::vector<std::string> only_;
  bool failed_ = false;
  bool ran_ = false;
};

}  // namespace isthmus::gpu
