// What isthmus_perf prints and writes.
#pragma once

#include <string>
#include <vector>

#include "isthmus/node_map.h"
#include "perf/arguments.h"
#include "perf/measure.h"

namespace isthmus::perf {

// What was measured on.
struct Setting {
  std::string transport;  // "in-process", "mpi" or "nccl"
  std::string version;    // of the library that it uses; empty: none
  NodeMap map;
  std::vector<std::string> places;   // of each rank: host and process
  std::vector<std::string> devices;  // of each rank
  std::string started_at;            // UTC, ISO 8601
};

// "host1 pid 17"
std::string own_place();
std::string utc_now();

void print_heading(const Setting& setting);
void print_row(const Result& result, int num_ranks);
// Everything, with versions, ranks and arguments. Throws Error if the file cannot be written.
void write_json(const std::string& path, const Arguments& arguments, const Setting& setting,
                const std::vector<Result>& results);

}  // namespace isthmus::perf
