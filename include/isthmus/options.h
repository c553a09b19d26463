// Every knob of Isthmus, with unit, range, default and environment variable: the one struct, and the one reader of the
// environment.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace isthmus {

struct Options {
  std::string nodes;                   // "2x4", "0,1|2,3" by global rank; empty: from launcher or machine
  std::string codec = "tagc";          // none, tagc
  std::string tiers = "two";           // two, flat
  std::string inter_tier = "gloo";     // gloo, mpi: what carries the packets (torch backend only)
  double ratio = 10;                   // tagc: sketch rows = blocks / ratio
  double sparsity = 0.9875;            // tagc: share of each piece that is not sent
  int64_t index_bits = 1;              // tagc with tiers=flat: 1 (bitwise or) or 4 (counts, to 15 ranks)
  int64_t block_elements = 0;          // tagc: neighbouring elements treated together; 0: chosen from the piece's size
  int64_t peel_rounds = 64;            // tagc: bound on decoding rounds
  std::string units = "*";             // which units are compressed: comma-separated globs of names, "!" excludes
  std::string gradients = "labelled";  // labelled, backward: which reductions are taken for gradients
  int64_t min_elements = 65536;        // smaller inputs (of the whole collective) are reduced and gathered plainly
  bool two_tier_all_gather = true;     // large all-gathers cross between nodes once, exactly
  int64_t max_units = 4096;            // units whose state is kept; above: exact and counted
  bool device_timings = false;         // GPU: seconds of each phase in the statistics, from events around it
  std::string log = "warning";         // debug, info, warning, error

  // Checks ranges that one field alone decides. Throws OptionError naming field, value and range.
  void validate() const;
  // "codec=tagc tiers=two ...": every field, in declaration order; equal text means equal options.
  std::string to_string() const;
  // Defaults overridden by ISTHMUS_*; throws OptionError naming the variable. The only place that reads the
  // environment.
  static Options from_environment();
};

// One row a field: drives parsing, printing, the Python keywords and the table in docs.
struct OptionField {
  const char* name;         // of the field and the Python keyword
  const char* environment;  // variable
  const char* range;        // for people
  const char* help;         // one sentence
  std::function<std::string(const Options&)> get;
  std::function<void(Options&, const std::string&)> set;  // throws OptionError naming the field, value and range
};
const std::vector<OptionField>& option_fields();

}  // namespace isthmus
