#include "perf/arguments.h"

#include <CLI/CLI.hpp>
#include <map>

#include "isthmus/error.h"

namespace isthmus::perf {
namespace {

const std::map<std::string, Operation> kOperations = {{"reduce_scatter", Operation::kReduceScatter},
                                                      {"all_gather", Operation::kAllGather},
                                                      {"all_reduce", Operation::kAllReduce}};
const std::map<std::string, DataType> kDataTypes = {{"float32", DataType::kFloat32},
                                                    {"bfloat16", DataType::kBFloat16},
                                                    {"float16", DataType::kFloat16},
                                                    {"float64", DataType::kFloat64}};

CLI::Option* add_list(CLI::Option* option) { return option->delimiter(',')->expected(1, 16); }

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
  app.add_option("-b,--min-bytes", arguments.min_bytes, "Size of the smallest tensor, as 64K")
      ->transform(size_in_bytes)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("-e,--max-bytes", arguments.max_bytes, "Size of the largest tensor, as 16M")
      ->transform(size_in_bytes)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("-f,--factor", arguments.factor, "Each size is this many times the one before")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 20));
  add_list(app.add_option("-o,--operations", arguments.operations, "reduce_scatter,all_gather,all_reduce"))
      ->transform(CLI::CheckedTransformer(kOperations));
  add_list(app.add_option("-d,--dtypes", arguments.dtypes, "float32,bfloat16,float16,float64"))
      ->transform(CLI::CheckedTransformer(kDataTypes));
  const std::vector<std::string> codecs = codec_names();
  add_list(app.add_option("-c,--codecs", arguments.codecs, CLI::detail::join(codecs, ",")))
      ->check(CLI::IsMember(codecs));
  add_list(app.add_option("-t,--tiers", arguments.tiers, "two,flat"))->check(CLI::IsMember({"two", "flat"}));
  app.add_option("--transport", arguments.transport,
                 "auto: mpi where mpiexec started this, nccl with --rank, else in-process")
      ->check(CLI::IsMember({"auto", "in-process", "mpi", "nccl"}));
  const CLI::Option* num_ranks =
      app.add_option("-r,--ranks", arguments.num_ranks, "Threads that are ranks in process, or processes over NCCL")
          ->check(CLI::Range(1, 65536));
  NcclProcess& process = arguments.process;
  app.add_option("--rank", process.rank, "This process's rank over NCCL; of torchrun, RANK")
      ->envname("RANK")
      ->check(CLI::Range(0, 65535));
  app.add_option("--id-file", process.id_file, "Where the ranks over NCCL meet: a path that all see, of no file");
  app.add_option("--gpu", process.gpu, "This process's GPU. Default: torchrun's LOCAL_RANK, else the rank, in turns")
      ->check(CLI::Range(0, 1023));
  app.add_option(
      "--nodes", arguments.nodes,
      "Node map, as 2x2 or 0,1|2,3. Default: what MPI finds or torchrun says; else two nodes of half the ranks");
  app.add_option("-w,--warmups", arguments.num_warmups, "Calls before the clock starts")->check(CLI::Range(0, 1000000));
  app.add_option("-n,--iterations", arguments.num_iterations, "Calls that are timed")->check(CLI::Range(1, 1000000));
  app.add_option("--timeout-ms", timeout_ms, "Of one operation of a tier")->check(CLI::Range(1, 86400000));
  app.add_flag("!--no-verify", arguments.verify, "Measure only");
  app.add_option("--json", arguments.json_path, "Also write everything to this file");
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
  arguments.timeout = std::chrono::milliseconds(timeout_ms);
  process.num_ranks = num_ranks->count() > 0 ? arguments.num_ranks : 0;
  return true;
}

}  // namespace isthmus::perf
