// Tests of a GPU alone, real or emulated: their names are made of their data. Each makes GPUs of its own.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "tests/cpp/gpu/device/gpu.h"

namespace isthmus::gpu {

// Thrown by a test that cannot be run here; what(): why.
class NotRun : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws std::runtime_error with `what` unless the condition holds.
inline void require(bool condition, const std::string& what) {
  if (!condition) {
    throw std::runtime_error(what);
  }
}

// Adds a test to those that GoogleTest runs. It fails where `body` throws. `body` runs later: it holds what it needs.
void add_test(const char* suite, const std::string& name, std::function<void()> body);

// Add the tests of a file. is_short: few and small, for tools that slow everything down.
void add_arithmetic(bool is_short);
void add_batches();
void add_codecs(bool is_short);
void add_faults();
void add_flat(bool is_short);
void add_graphs(bool is_short);
// These need gigabytes of the device's and the host's memory.
void add_large();
void add_order(bool is_short);
void add_weights(bool is_short);

// Be a program of these tests: all but suite Large, unless --gtest_filter says others. Returns the exit status: 0 where
// tests ran and none failed. --short: few and small ones.
int run_tests(int argc, char** argv);

}  // namespace isthmus::gpu
