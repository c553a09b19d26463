#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/gpu/checks/suites.h"

namespace isthmus::gpu {
namespace {

constexpr const char* kUsage = "usage: %s [codecs | device | graphs | large]... [--short] [--only=TEXT]...\n";
constexpr const char* kLarge = "large";

struct Suite {
  std::string group;
  void (*check)(Checks& checks, const MakeGpu& make_gpu, bool is_short);
};
const Suite kSuites[] = {{"codecs", check_codecs},  {"codecs", check_flat},       {"codecs", check_batches},
                         {"codecs", check_weights}, {"device", check_arithmetic}, {"device", check_order},
                         {"device", check_faults},  {"graphs", check_graphs},     {kLarge, check_large}};

}  // namespace

int check_main(int argc, char** argv, const MakeGpu& make_gpu) {
  std::vector<std::string> groups;
  std::vector<std::string> names;
  bool is_short = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto is_named = [&](const Suite& suite) { return suite.group == argument; };
    if (argument == "--short") {
      is_short = true;
    } else if (argument.starts_with("--only=")) {
      names.push_back(argument.substr(argument.find('=') + 1));
    } else if (std::any_of(std::begin(kSuites), std::end(kSuites), is_named)) {
      groups.push_back(argument);
    } else {
      std::fprintf(stderr, kUsage, argv[0]);
      return 2;
    }
  }
  Checks checks(names);
  for (const Suite& suite : kSuites) {
    if (groups.empty() ? suite.group != kLarge : std::find(groups.begin(), groups.end(), suite.group) != groups.end()) {
      suite.check(checks, make_gpu, is_short);
    }
  }
  return checks.failed() ? 1 : 0;
}

}  // namespace isthmus::gpu
