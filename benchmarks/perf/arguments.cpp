#include "perf/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "isthmus/codec_type.h"
#include "isthmus/error.h"

namespace isthmus::perf {
namespace {

template <typename Value>
using Named = std::vector<std::pair<std::string, Value>>;

template <typename Value>
std::vector<std::string> names_of(const Named<Value>& named) {
  std::vector<std::string> names;
  for (const auto& [name, value] : named) {
    names.push_back(name);
  }
  return names;
}

// Each of `names`, which are known.
template <typename Value>
std::vector<Value> values_of(const Named<Value>& named, const std::vector<std::string>& names) {
  std::vector<Value> values;
  for (const std::string& name : names) {
    const auto is_it = [&](const auto& known) { return known.first == name; };
    values.push_back(std::ranges::find_if(named, is_it)->second);
  }
  return values;
}

const Named<Operation> kOperations = {{"reduce_scatter", Operation::kReduceScatter},
                                      {"all_gather", Operation::kAllGather},
                                      {"all_reduce", Operation::kAllReduce}};
const Named<DataType> kDataTypes = {{"float32", DataType::kFloat32},
                                    {"bfloat16", DataType::kBFloat16},
                                    {"float16", DataType::kFloat16},
                                    {"float64", DataType::kFloat64}};

// Says nothing in the help, where names and ranges are for people.
CLI::Validator quiet(CLI::Validator validator) { return validator.description(""); }

// A list between commas of some of `known`.
void add_list(CLI::Option* option, const std::vector<std::string>& known) {
  option->delimiter(',')->expected(1, 16)->type_name("NAMES")->check(quiet(CLI::IsMember(known)));
  option->default_str(CLI::detail::join(option->as<std::vector<std::string>>(), ","));
}

}  // namespace

const char* to_string(Operation operation) {
  switch (operation) {
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kAllReduce:
      return "all_reduce";
  }
  return "unknown";
}

bool parse_arguments(int argc, char** argv, Arguments& arguments, int& exit_status) {
  CLI::App app(
      "Measures and verifies the collectives of Isthmus, without torch. Ranks are threads, processes of mpiexec, or "
      "processes with a GPU each.");
  int64_t timeout_ms = arguments.timeout.count();
  const CLI::AsSizeValue size_in_bytes(false);  // 1K is 1024
  app.option_defaults()->always_capture_default();
  const CLI::Range any_size(int64_t{1}, int64_t{1} << 40);
  app.add_option("-b,--min-bytes", arguments.min_bytes, "Size of the smallest tensor: bytes, or as 64K, 1M, 2G")
      ->transform(quiet(size_in_bytes))
      ->check(quiet(any_size))
      ->type_name("SIZE")
      ->default_str("64K");
  app.add_option("-e,--max-bytes", arguments.max_bytes, "Size of the largest tensor")
      ->transform(quiet(size_in_bytes))
      ->check(quiet(any_size))
      ->type_name("SIZE")
      ->default_str("16M");
  app.add_option("-f,--factor", arguments.factor, "Each size is this many times the one before")
      ->check(quiet(CLI::Range(int64_t{2}, int64_t{1} << 20)))
      ->type_name("N");
  std::vector<std::string> operations = names_of(kOperations);
  add_list(app.add_option("-o,--operations", operations, "Some of " + CLI::detail::join(operations, ",")), operations);
  std::vector<std::string> dtypes{"float32"};
  add_list(app.add_option("-d,--dtypes", dtypes, "Some of " + CLI::detail::join(names_of(kDataTypes), ",")),
           names_of(kDataTypes));
  const std::vector<std::string> codecs = codec_names();
  add_list(app.add_option("-c,--codecs", arguments.codecs, "Some of " + CLI::detail::join(codecs, ",")), codecs);
  add_list(app.add_option("-t,--tiers", arguments.tiers, "Some of two,flat"), {"two", "flat"});
  app.add_option("--transport", arguments.transport,
                 "in-process, mpi or nccl; auto: mpi where mpiexec started this, nccl with --rank, else in-process")
      ->check(quiet(CLI::IsMember({"auto", "in-process", "mpi", "nccl"})))
      ->type_name("NAME");
  const CLI::Option* num_ranks =
      app.add_option("-r,--ranks", arguments.num_ranks, "Threads that are ranks in process, or processes over NCCL")
          ->check(quiet(CLI::Range(1, 65536)))
          ->type_name("N");
  NcclProcess& process = arguments.process;
  app.add_option("--rank", process.rank, "This process's rank over NCCL; of torchrun, RANK")
      ->envname("RANK")
      ->check(quiet(CLI::Range(0, 65535)))
      ->type_name("N")
      ->default_str("");
  app.add_option("--id-file", process.id_file, "Where the ranks over NCCL meet: a path that all see, of no file")
      ->type_name("FILE");
  app.add_option("--gpu", process.gpu, "This process's GPU. Default: torchrun's LOCAL_RANK, else the rank, in turns")
      ->check(quiet(CLI::Range(0, 1023)))
      ->type_name("N")
      ->default_str("");
  app.add_option(
         "--nodes", arguments.nodes,
         "Node map, as 2x2 or 0,1|2,3. Default: what MPI finds or torchrun says; else two nodes of half the ranks")
      ->type_name("MAP");
  app.add_option("-w,--warmups", arguments.num_warmups, "Calls before the clock starts")
      ->check(quiet(CLI::Range(0, 1000000)))
      ->type_name("N");
  app.add_option("-n,--iterations", arguments.num_iterations, "Calls that are timed")
      ->check(quiet(CLI::Range(1, 1000000)))
      ->type_name("N");
  app.add_option("--timeout-ms", timeout_ms, "Of one operation of a tier")
      ->check(quiet(CLI::Range(1, 86400000)))
      ->type_name("MS");
  app.add_flag_callback(
      "--no-verify", [&arguments] { arguments.verify = false; }, "Measure only");
  app.add_option("--json", arguments.json_path, "Also write everything to this file")->type_name("FILE");
  try {
    app.parse(argc, argv);
    if (arguments.min_bytes > arguments.max_bytes) {
      throw CLI::ValidationError(
          "--min-bytes", detail::concatenate(arguments.min_bytes, " is more than --max-bytes ", arguments.max_bytes));
    }
  } catch (const CLI::ParseError& error) {
    exit_status = app.exit(error);
    return false;
  }
  arguments.operations = values_of(kOperations, operations);
  arguments.dtypes = values_of(kDataTypes, dtypes);
  arguments.timeout = std::chrono::milliseconds(timeout_ms);
  process.num_ranks = num_ranks->count() > 0 ? arguments.num_ranks : 0;
  return true;
}

}  // namespace isthmus::perf
