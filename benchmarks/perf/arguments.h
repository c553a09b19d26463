// The command line of isthmus_perf.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/options.h"
#include "perf/ranks.h"

namespace isthmus::perf {

enum class Operation : uint8_t { kReduceScatter, kAllGather, kAllReduce };
const char* to_string(Operation operation);

struct Arguments {
  int64_t min_bytes = int64_t{1} << 16;  // of the whole tensor
  int64_t max_bytes = int64_t{1} << 24;
  int64_t factor = 4;
  std::vector<Operation> operations{Operation::kReduceScatter, Operation::kAllGather, Operation::kAllReduce};
  std::vector<DataType> dtypes{DataType::kFloat32};
  std::vector<std::string> codecs{Options().codec};
  std::vector<std::string> tiers{"two"};
  std::string transport = "auto";
  int num_ranks = 4;    // in process
  NcclProcess process;  // over NCCL
  std::string nodes;
  int num_warmups = 1;
  int num_iterations = 5;
  std::chrono::milliseconds timeout{60000};
  bool verify = true;
  std::string json_path;
};

// Returns true and fills `arguments`, or prints help or what is wrong and sets the exit status.
bool parse_arguments(int argc, char** argv, Arguments& arguments, int& exit_status);

}  // namespace isthmus::perf
