#include "isthmus/stats.h"

namespace isthmus {

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
  }
  return "unknown";
}

}  // namespace isthmus
