#include "perf/report.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "isthmus/error.h"
#include "kernels/block/instruction_set.h"

namespace isthmus::perf {
namespace {

using json = nlohmann::ordered_json;

json describe(const Arguments& arguments) {
  std::vector<std::string> operations;
  for (const Operation operation : arguments.operations) {
    operations.emplace_back(to_string(operation));
  }
  std::vector<std::string> dtypes;
  for (const DataType dtype : arguments.dtypes) {
    dtypes.emplace_back(isthmus::to_string(dtype));
  }
  return {{"min_bytes", arguments.min_bytes},
          {"max_bytes", arguments.max_bytes},
          {"factor", arguments.factor},
          {"operations", operations},
          {"dtypes", dtypes},
          {"codecs", arguments.codecs},
          {"tiers", arguments.tiers},
          {"nodes", arguments.nodes},
          {"warmups", arguments.num_warmups},
          {"iterations", arguments.num_iterations},
          {"timeout_ms", arguments.timeout.count()},
          {"verify", arguments.verify}};
}

json describe(const Setting& setting) {
  json ranks = json::array();
  for (size_t rank = 0; rank < setting.places.size(); ++rank) {
    ranks.push_back({{"rank", rank},
                     {"node", setting.map.node(static_cast<int>(rank))},
                     {"place", setting.places[rank]},
                     {"device", setting.devices[rank]}});
  }
  return ranks;
}

json describe(const Result& result, int num_ranks) {
  return {{"operation", to_string(result.operation)},
          {"dtype", isthmus::to_string(result.dtype)},
          {"codec", result.codec},
          {"tiers", result.tiers},
          {"bytes", result.bytes()},
          {"count", result.num_elements},
          {"time_s", result.seconds},
          {"algbw_gb_s", result.algorithm_bandwidth()},
          {"busbw_gb_s", result.bus_bandwidth(num_ranks)},
          {"inter_bytes_per_node", result.node_bytes},
          {"num_wrong", result.num_wrong ? json(*result.num_wrong) : json(nullptr)}};
}

}  // namespace

std::string own_place() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return detail::concatenate(host, " pid ", getpid());
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

void print_heading(const Setting& setting) {
  std::cout << "# isthmus_perf " << ISTHMUS_VERSION << ", " << setting.map.to_string() << ", " << setting.transport
            << (setting.version.empty() ? "" : ": " + setting.version) << ", " << setting.devices.front() << '\n';
  for (size_t rank = 0; rank < setting.places.size(); ++rank) {
    std::cout << "#   rank " << rank << " on node " << setting.map.node(static_cast<int>(rank)) << ": "
              << setting.places[rank] << '\n';
  }
  std::cout
      << "# inter: bytes of payload that leave a node in one call. #wrong: -, not defined by element\n#\n"
      << "#       size        count            operation      type  codec tiers      time    algbw    busbw        "
         "inter  #wrong\n"
      << "#        (B)   (elements)                                              (us)   (GB/s)   (GB/s)          "
         "(B)\n";
}

void print_row(const Result& result, int num_ranks) {
  std::cout << std::setw(12) << result.bytes() << std::setw(13) << result.num_elements << std::setw(21)
            << to_string(result.operation) << std::setw(10) << isthmus::to_string(result.dtype) << std::setw(7)
            << result.codec << std::setw(6) << result.tiers << std::fixed << std::setprecision(1) << std::setw(10)
            << result.seconds * 1e6 << std::setprecision(3) << std::setw(9) << result.algorithm_bandwidth()
            << std::setw(9) << result.bus_bandwidth(num_ranks) << std::setprecision(0) << std::setw(13)
            << result.node_bytes << std::setw(8) << (result.num_wrong ? std::to_string(*result.num_wrong) : "-")
            << std::endl;
}

void write_json(const std::string& path, const Arguments& arguments, const Setting& setting,
                const std::vector<Result>& results) {
  json rows = json::array();
  for (const Result& result : results) {
    rows.push_back(describe(result, setting.map.world_size()));
  }
  const json report = {{"program", "isthmus_perf"},
                       {"started_at", setting.started_at},
                       {"versions",
                        {{"isthmus", ISTHMUS_VERSION},
                         {"compiler", __VERSION__},
                         {"mpi", setting.transport == "mpi" ? json(setting.version) : json(nullptr)},
                         {"nccl", setting.transport == "nccl" ? json(setting.version) : json(nullptr)},
                         {"instruction_set", kernels::to_string(kernels::instruction_set())}}},
                       {"transport", setting.transport},
                       {"node_map", setting.map.to_string()},
                       {"ranks", describe(setting)},
                       {"arguments", describe(arguments)},
                       {"results", rows}};
  std::ofstream file(path);
  file << report.dump(2) << '\n';
  file.close();
  ISTHMUS_CHECK(Error, !file.fail(), "cannot write ", path);
}

}  // namespace isthmus::perf
