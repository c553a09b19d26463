// isthmus_perf: collectives over sizes, types, codecs and tiers, in the manner of nccl-tests. Verifies what it
// measures; its exit status is not 0 where something is wrong.
#include <cstdlib>
#include <exception>
#include <iostream>
#include <limits>
#include <vector>

#include "isthmus/error.h"
#include "perf/arguments.h"
#include "perf/measure.h"
#include "perf/ranks.h"
#include "perf/report.h"

namespace isthmus::perf {
namespace {

// Elements of each size, rounded up to a multiple of the ranks.
std::vector<int64_t> element_counts(const Arguments& arguments, DataType dtype, int num_ranks) {
  std::vector<int64_t> counts;
  for (int64_t bytes = arguments.min_bytes; bytes <= arguments.max_bytes; bytes *= arguments.factor) {
    const int64_t granule = element_bytes(dtype) * num_ranks;
    counts.push_back((bytes + granule - 1) / granule * num_ranks);
  }
  return counts;
}

// Codec and tiers say nothing about all-gathers: they are measured once.
bool applies(Operation operation, const Options& options, const Arguments& arguments) {
  return operation != Operation::kAllGather ||
         (options.codec == arguments.codecs.front() && options.tiers == arguments.tiers.front());
}

// One rank's part; rank 0 prints. Returns the results, the same on all ranks.
std::vector<Result> sweep(Rank& rank, const NodeMap& map, const Arguments& arguments) {
  std::vector<Result> results;
  for (const std::string& tiers : arguments.tiers) {
    for (const std::string& codec : arguments.codecs) {
      Options options;
      options.codec = codec;
      options.tiers = tiers;
      options.min_elements = 0;
      Bench bench(rank, map, options, arguments);
      for (const Operation operation : arguments.operations) {
        for (const DataType dtype : arguments.dtypes) {
          if (!applies(operation, options, arguments)) {
            continue;
          }
          for (const int64_t num_elements : element_counts(arguments, dtype, rank.size())) {
            results.push_back(bench.run(operation, dtype, num_elements));
            if (rank.rank() == 0) {
              print_row(results.back(), rank.size());
            }
          }
        }
      }
    }
  }
  return results;
}

bool all_right(const std::vector<Result>& results) {
  for (const Result& result : results) {
    if (result.num_wrong.value_or(0) != 0) {
      return false;
    }
  }
  return !results.empty();
}

// Returns whether all results were right.
bool run_rank(Rank& rank, const std::string& transport, const Arguments& arguments) {
  const NodeMap map = arguments.nodes.empty() ? rank.default_nodes() : NodeMap::parse(arguments.nodes, rank.size());
  const Setting setting{transport, map, rank.gather(own_place()), utc_now()};
  if (rank.rank() == 0) {
    print_heading(setting);
  }
  const std::vector<Result> results = sweep(rank, map, arguments);
  const bool right = all_right(results);
  if (rank.rank() == 0) {
    if (!arguments.json_path.empty()) {
      write_json(arguments.json_path, arguments, setting, results);
    }
    std::cout << (right ? "# all right" : "# WRONG RESULTS") << std::endl;
  }
  return right;
}

bool run(const Arguments& arguments) {
  const bool over_mpi = arguments.transport == "mpi" || (arguments.transport == "auto" && started_by_mpiexec());
  bool right = false;
  const auto body = [&](Rank& rank) {
    const bool rank_right = run_rank(rank, over_mpi ? "mpi" : "in-process", arguments);
    if (over_mpi || rank.rank() == 0) {
      right = rank_right;
    }
  };
  over_mpi ? run_over_mpi(arguments.timeout, body) : run_in_process(arguments.num_ranks, arguments.timeout, body);
  return right;
}

}  // namespace
}  // namespace isthmus::perf

int main(int argc, char** argv) {
  isthmus::perf::Arguments arguments;
  int exit_status = EXIT_FAILURE;
  if (!isthmus::perf::parse_arguments(argc, argv, arguments, exit_status)) {
    return exit_status;
  }
  try {
    return isthmus::perf::run(arguments) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    std::cerr << "isthmus_perf: " << error.what() << std::endl;
    return EXIT_FAILURE;
  }
}
