// Where no NCCL was found, or nothing is built for CUDA.
#include "isthmus/error.h"
#include "perf/ranks.h"

namespace isthmus::perf {

void run_over_nccl(const NcclProcess& /*process*/, std::chrono::milliseconds /*timeout*/, const RankBody& /*body*/) {
  throw OptionError("--transport nccl: isthmus_perf was built without NCCL");
}

std::string nccl_version_text() { return ""; }

}  // namespace isthmus::perf
