// Reports that ranks exchange through the store when an operation fails, so that the error names the missing ranks.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace isthmus::torch_backend {

// Drops the source locations that torch appends to an error's text.
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Where one rank was when its operation failed.
struct FaultReport {
  uint64_t sequence_number = 0;
  std::string operation = {};  // "reduce-scatter"
  std::string tensor = {};     // the whole collective's, "4096 x Float"; may be empty
  std::string unit = {};       // may be empty
  std::string phase = {};      // may be empty
  std::string error = {};
};

// Returns "reduce-scatter #7 of 4096 x Float of unit blocks.1".
std::string describe(const FaultReport& report);

// Each process group has one board, under its own prefix in the store.
class FaultBoard {
 public:
  // global_ranks[r] is group rank r's global rank, which reports name.
  FaultBoard(const c10::intrusive_ptr<c10d::Store>& store, int rank, std::vector<int> global_ranks);
  ~FaultBoard();

  // Publishes this rank's report. Returns within half a second, even if the store does not answer.
  void post(const FaultReport& report);

  // Returns whether any rank has posted, within a second.
  bool any_report();

  // Waits until all ranks have posted, at most for `patience`, and returns a sentence that names the ranks that did not
  // post, the ranks that were in another operation, and where the others failed. The wait is bounded even if the store
  // does not answer.
  std::string diagnose(const FaultReport& own, std::chrono::milliseconds patience);

 private:
  class PatientStore;

  // posted: by group rank.
  std::string sentence(const std::map<int, std::string>& posted, const FaultReport& own) const;

  int rank_;
  std::vector<int> global_ranks_;
  std::unique_ptr<PatientStore> store_;
};

}  // namespace isthmus::torch_backend
