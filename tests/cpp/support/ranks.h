// Ranks as threads.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>

namespace isthmus::test {

// What a rank's body threw; no type if it returned.
struct Outcome {
  const std::type_info* type = nullptr;
  std::string text;

  template <typename ErrorType>
  bool threw() const {
    return type != nullptr && *type == typeid(ErrorType);
  }
};

// Runs body(rank) on `world_size` threads and waits for all.
template <typename Body>
std::vector<Outcome> run_ranks(int world_size, const Body& body) {
  std::vector<Outcome> outcomes(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        outcomes[rank] = {&typeid(error), error.what()};
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return outcomes;
}

// The same, where no rank may throw.
template <typename Body>
void run_ranks_well(int world_size, const Body& body) {
  const std::vector<Outcome> outcomes = run_ranks(world_size, body);
  for (int rank = 0; rank < world_size; ++rank) {
    EXPECT_EQ(outcomes[rank].type, nullptr) << "rank " << rank << ": " << outcomes[rank].text;
  }
}

}  // namespace isthmus::test
