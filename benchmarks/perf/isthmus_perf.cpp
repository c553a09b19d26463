// isthmus_perf: collectives over sizes, types, codecs and tiers, in the manner of nccl-tests. Verifies what it
// measures; its exit status is not 0 where something is wrong.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
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

// All operations, types and sizes with these options. Rank 0 prints.
void measure_all(Rank& rank, Bench& bench, const Options& options, const Arguments& arguments,
                 std::vector<Result>& results) {
  for (const Operation operation : arguments.operations) {
    if (!applies(operation, options, arguments)) {
      continue;
    }
    for (const DataType dtype : arguments.dtypes) {
      for (const int64_t num_elements : element_counts(arguments, dtype, rank.size())) {
        results.push_back(bench.run(operation, dtype, num_elements));
        if (rank.rank() == 0) {
          print_row(results.back(), rank.size());
        }
      }
    }
  }
}

// The same on all ranks.
std::vector<Result> sweep(Rank& rank, const NodeMap& map, const Arguments& arguments) {
  std::vector<Result> results;
  for (const std::string& tiers : arguments.tiers) {
    for (const std::string& codec : arguments.codecs) {
      Options options;
      options.codec = codec;
      options.tiers = tiers;
      options.min_elements = 0;
      std::unique_ptr<Bench> bench;
      try {
        bench = std::make_unique<Bench>(rank, map, options, arguments);
      } catch (const OptionError& error) {  // on all ranks: not every codec has every form, nor every device
        if (rank.rank() == 0) {
          std::cout << "# left out: codec " << codec << ", tiers " << tiers << ": " << error.what() << std::endl;
        }
        continue;
      }
      measure_all(rank, *bench, options, arguments, results);
    }
  }
  return results;
}

bool all_right(const std::vector<Result>& results) {
  return !results.empty() && std::all_of(results.begin(), results.end(),
                                         [](const Result& result) { return result.num_wrong.value_or(0) == 0; });
}

std::string version_of(const std::string& transport) {
  return transport == "mpi" ? mpi_version() : transport == "nccl" ? nccl_version_text() : "";
}

// Returns whether all results were right.
bool run_rank(Rank& rank, const std::string& transport, const Arguments& arguments) {
  const NodeMap map = arguments.nodes.empty() ? rank.default_nodes() : NodeMap::parse(arguments.nodes, rank.size());
  const Setting setting{
      transport, version_of(transport), map, rank.gather(own_place()), rank.gather(rank.device_model()), utc_now()};
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

std::string choose_transport(const Arguments& arguments) {
  if (arguments.transport != "auto") {
    return arguments.transport;
  }
  return started_by_mpiexec() ? "mpi" : arguments.process.rank >= 0 ? "nccl" : "in-process";
}

bool run(const Arguments& arguments) {
  const std::string transport = choose_transport(arguments);
  bool right = false;
  const auto body = [&](Rank& rank) {
    const bool rank_right = run_rank(rank, transport, arguments);
    if (transport != "in-process" || rank.rank() == 0) {
      right = rank_right;
    }
  };
  if (transport == "mpi") {
    run_over_mpi(arguments.timeout, body);
  } else if (transport == "nccl") {
    run_over_nccl(arguments.process, arguments.timeout, body);
  } else {
    run_in_process(arguments.num_ranks, arguments.timeout, body);
  }
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
