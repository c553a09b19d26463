// Which path and which codec pay for a unit. Pure functions: decisions depend on the arguments alone, so that ranks
// with equal measurements decide alike. The model and its sources: docs/auto.md.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/options.h"
#include "isthmus/stats.h"

namespace isthmus {

// The time of an operation by the bytes that it moves.
struct Speed {
  double latency_s = 0;
  double bytes_per_s = 0;  // 0: unknown

  bool known() const { return bytes_per_s > 0; }
  double seconds(double bytes) const { return latency_s + bytes / bytes_per_s; }
};

// Of each kind of operation, while all ranks of the group run it at once. Bytes: what one rank sends to others.
struct LinkSpeeds {
  Speed intra_reduce;  // reduce-scatter within the node, sums included
  Speed intra_gather;
  Speed inter;         // along the rail
  Speed world_reduce;  // the world backend's own; bytes: of the whole input. Unknown: it is not chosen
  Speed world_all_reduce;
  Speed world_gather;
};

struct CodecSpeed {
  double encode_elements_per_s = 0;  // of one piece; 0: unknown, so that the codec is not chosen
  double decode_elements_per_s = 0;

  bool known() const { return encode_elements_per_s > 0 && decode_elements_per_s > 0; }
};

// A choice of auto: its place in candidates().
struct Candidate {
  static const Candidate kWorld;  // the world backend
  static const Candidate kNone;   // exact in two tiers

  int place = 1;

  auto operator<=>(const Candidate&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees one
};
inline constexpr Candidate Candidate::kWorld{0};
inline constexpr Candidate Candidate::kNone{1};

// The world backend, then the candidates of each codec of the registry: from exact to the largest error.
const std::vector<Candidate>& candidates();
constexpr bool is_exact(Candidate candidate) { return candidate <= Candidate::kNone; }
std::string to_string(Candidate candidate);  // "quant 4 bit"

// One value for each candidate.
template <typename T>
struct ByCandidate {
  std::vector<T> values = std::vector<T>(candidates().size());

  T& operator[](Candidate candidate) { return values.at(static_cast<size_t>(candidate.place)); }
  const T& operator[](Candidate candidate) const { return values.at(static_cast<size_t>(candidate.place)); }
};

// Equal on all ranks.
struct Measurements {
  LinkSpeeds links;
  ByCandidate<CodecSpeed> codecs;             // kNone included
  ByCandidate<std::optional<double>> errors;  // of this unit, relative squared; nothing: not measured yet
  double hidden_s = 0;                        // of a reduction of this unit: the caller computes meanwhile
};

// Equal on all ranks.
struct UnitFacts {
  int64_t num_elements = 0;  // of the whole input
  DataType dtype = DataType::kFloat32;
  Collective collective = Collective::kReduceScatter;
  int num_nodes = 2;
  int ranks_per_node = 1;
  std::optional<Candidate> current;  // the previous choice
};

struct Choice {
  Candidate candidate = Candidate::kNone;
  Options settings;    // codec, bits, ... in place of auto; of kWorld: codec none
  double seconds = 0;  // of one reduction, by the model
  std::string reason;  // one line for people
};

// The budget where options.error_budget gives none: quant of 4 bits keeps to it, and 3 bits do not.
inline constexpr double kDefaultErrorBudget = .02;
double error_budget(const Options& options);

// The relative squared error to expect where none was measured: CodecType::prior_error.
double prior_error(Candidate candidate, const Options& options);
// The options that the candidate stands for: `options` with a codec and its width in place of auto.
Options settings_of(Candidate candidate, const Options& options);

// By the model: of one reduction. Speeds that it needs are known.
double reduction_seconds(Candidate candidate, const Measurements& measured, const UnitFacts& unit,
                         const Options& options);
// Whether an all-gather goes to the world backend: not where a speed is unknown. num_bytes: of the gathered whole.
bool world_gathers_faster(const LinkSpeeds& links, int64_t num_bytes, int num_nodes, int ranks_per_node);

// options.codec == "auto". Exact where nothing keeps to the budget, or compression does not pay. The current choice
// stays unless another one is faster by kWorthChanging.
Choice choose(const Measurements& measured, const UnitFacts& unit, const Options& options);

// Codec quant with bits=0: the fewest bits that keep to the budget, however fast; none where none do.
Choice choose_width(const ByCandidate<std::optional<double>>& errors, const Options& options);

// The share of the visible time that must be saved: by a choice with more error over one with less, by a lossy one over
// an exact one, and by a new one over the current one. A third of the bytes of an exact FSDP step are gradients: 6% of
// their reductions are 2% of a step.
inline constexpr double kWorthwhile = .02;
inline constexpr double kWorthLosing = .06;
inline constexpr double kWorthChanging = .05;
// The share that the world backend must save over two tiers, exact or not. It is measured while nothing else runs, and
// slows down more than they do beside compute: docs/auto.md, "What it chooses from".
inline constexpr double kWorthLeavingTiers = .2;

}  // namespace isthmus
