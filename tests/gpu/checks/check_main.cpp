#include "tests/gpu/checks/check_main.h"

#include <cstdio>
#include <string>
#include <vector>

#include "tests/gpu/checks/suites.h"

namespace isthmus::gpu {
namespace {

constexpr const char* kUsage = "usage: %s [codecs | device | graphs | large]... [--short]\n";

struct Chosen {
  bool codecs = false;
  bool device = false;
  bool graphs = false;
  bool large = false;
  bool is_short = false;
};

bool parse(int argc, char** argv, Chosen& chosen) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    bool* flag = argument == "codecs"    ? &chosen.codecs
                 : argument == "device"  ? &chosen.device
                 : argument == "graphs"  ? &chosen.graphs
                 : argument == "large"   ? &chosen.large
                 : argument == "--short" ? &chosen.is_short
                                         : nullptr;
    if (flag == nullptr) {
      return false;
    }
    *flag = true;
  }
  if (!chosen.codecs && !chosen.device && !chosen.graphs && !chosen.large) {
    chosen.codecs = chosen.device = chosen.graphs = true;
  }
  return true;
}

}  // namespace

int check_main(int argc, char** argv, const MakeGpu& make_gpu) {
  Chosen chosen;
  if (!parse(argc, argv, chosen)) {
    std::fprintf(stderr, kUsage, argv[0]);
    return 2;
  }
  Checks checks;
  if (chosen.codecs) {
    check_codecs(checks, make_gpu, chosen.is_short);
    check_weights(checks, make_gpu, chosen.is_short);
  }
  if (chosen.device) {
    check_arithmetic(checks, make_gpu, chosen.is_short);
    check_order(checks, make_gpu, chosen.is_short);
    check_faults(checks, make_gpu, chosen.is_short);
  }
  if (chosen.graphs) {
    check_graphs(checks, make_gpu, chosen.is_short);
  }
  if (chosen.large) {
    check_large(checks, make_gpu);
  }
  return checks.failed() ? 1 : 0;
}

}  // namespace isthmus::gpu
