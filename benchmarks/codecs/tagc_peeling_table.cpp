// Prints, as markdown, what peeling leaves: the tables of docs/tagc.md. Supports are random and independent; hashing
// and peeling are the library's own.
//
// First, what merging supports does to the sketch. A gradient of 2,359,296 elements (an MLP matrix of GPT-2) is split
// over N ranks. Flat: the owner of a shard decodes the merged supports of all N ranks. Two tiers: a packet holds one
// support.
//
// Then, how many rows the load asks for (ratio=0), by the size of a piece and the share that is kept.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "codec/tagc/settings.h"

namespace isthmus {
namespace {

constexpr int64_t kGradientElements = 2359296;
constexpr int64_t kPaperBlockElements = 1024;
constexpr int kTrials = 8;
constexpr int kRanks[] = {2, 4, 8, 16};

struct Level {
  const char* name;
  double ratio;
  double sparsity;
};
constexpr double kSparsities[] = {0, .8, .9, .9875, .999};
constexpr int64_t kPieces[] = {4096, 16384, 65536, 262144, 1048576, 4194304, 16777216};
constexpr Level kLevels[] = {{"2x / 80%", 2, .8}, {"4x / 90%", 4, .9}, {"10x / 98.75%", 10, .9875}};

TagcSettings settings_of(double ratio, double sparsity, int64_t block_elements) {
  Options options;
  options.ratio = ratio;
  options.sparsity = sparsity;
  return TagcSettings(options, {.block_elements = block_elements});
}

// Marks `keep` different elements that were not yet marked by this call.
void merge_random_support(const kernels::TagcShape& shape, int64_t keep, std::mt19937_64& random,
                          std::vector<uint64_t>& index) {
  std::vector<uint64_t> support(index.size());
  std::uniform_int_distribution<int64_t> pick(0, shape.num_elements - 1);
  while (keep > 0) {
    const int64_t element = pick(random);
    const uint64_t bit = uint64_t{1} << element % 64;
    keep -= (support[element / 64] & bit) == 0;
    support[element / 64] |= bit;
  }
  for (size_t word = 0; word < index.size(); ++word) {
    index[word] |= support[word];
  }
}

struct Outcome {
  double density = 0;   // of the merged support
  double unpeeled = 0;  // share of the merged support's elements that do not peel, or are held back
  int64_t rounds = 0;   // the most that a trial took
};

// Averages over trials with different supports and steps.
Outcome simulate(const TagcSettings& settings, const kernels::TagcShape& shape, int supports) {
  TagcScratch scratch;
  Outcome outcome;
  int64_t elements = 0;
  int64_t left = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::mt19937_64 random(trial);
    std::vector<uint64_t> index(shape.index_words());
    for (int support = 0; support < supports; ++support) {
      merge_random_support(shape, settings.keep(shape.num_elements), random, index);
    }
    const PacketContext context = {1, static_cast<uint64_t>(trial)};
    const kernels::BlockRows* rows = scratch.hash(shape, tagc_seed(context));
    const kernels::PeelScratch peel = scratch.peel(shape, index.data(), nullptr);
    const kernels::TagcKernels& kernel = kernels::tagc_kernels();
    const kernels::PeelResult result = supports == 1
                                           ? kernel.hold_back(shape, rows, settings.limits.peel_rounds,
                                                              tagc_first_block(shape, context), index.data(), peel)
                                           : kernel.peel_keys(shape, rows, settings.limits.peel_rounds, peel);
    elements += result.peeled_elements + result.left_elements;
    left += result.left_elements;
    outcome.rounds = std::max(outcome.rounds, result.rounds);
  }
  outcome.density = static_cast<double>(elements) / static_cast<double>(kTrials * shape.num_elements);
  outcome.unpeeled = static_cast<double>(left) / static_cast<double>(elements);
  return outcome;
}

void print_row(const Level& level, const char* form, int64_t block_elements, bool flat) {
  std::printf("| %s | %s |", level.name, form);
  for (const int ranks : kRanks) {
    const TagcSettings settings = settings_of(level.ratio, level.sparsity, block_elements);
    const kernels::TagcShape shape = settings.shape(kGradientElements / ranks);
    const Outcome outcome = simulate(settings, shape, flat ? ranks : 1);
    std::printf(" %.3f / %.3g%% (%lldx%lld) |", outcome.density, 100 * outcome.unpeeled,
                static_cast<long long>(shape.num_rows), static_cast<long long>(shape.block_elements));
  }
  std::printf("\n");
}

void print_merged_supports() {
  std::printf("Union density / share of it that does not peel (rows x columns of the sketch), mean of %d trials.\n\n",
              kTrials);
  std::printf("| level | form |");
  for (const int ranks : kRanks) {
    std::printf(" N = %d |", ranks);
  }
  std::printf("\n|---|---|---|---|---|---|\n");
  for (const Level& level : kLevels) {
    print_row(level, "flat, blocks of 1024", kPaperBlockElements, true);
    print_row(level, "flat", 0, true);
    print_row(level, "two tiers", 0, false);
  }
}

void print_rows_by_load() {
  std::printf("\nRows by load: rows x columns / keys a cell / share held back / rounds, of %d trials.\n\n", kTrials);
  std::printf("| elements |");
  for (const double sparsity : kSparsities) {
    std::printf(" kept %g%% |", 100 * (1 - sparsity));
  }
  std::printf("\n|---|---|---|---|---|---|\n");
  for (const int64_t num_elements : kPieces) {
    std::printf("| %lld |", static_cast<long long>(num_elements));
    for (const double sparsity : kSparsities) {
      const TagcSettings settings = settings_of(0, sparsity, 0);
      const kernels::TagcShape shape = settings.shape(num_elements);
      const Outcome outcome = simulate(settings, shape, 1);
      std::printf(" %lldx%lld / %.2f / %.2g%% / %lld |", static_cast<long long>(shape.num_rows),
                  static_cast<long long>(shape.block_elements),
                  static_cast<double>(settings.keep(num_elements)) / static_cast<double>(shape.num_cells()),
                  100 * outcome.unpeeled, static_cast<long long>(outcome.rounds));
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace isthmus

int main() {
  isthmus::print_merged_supports();
  isthmus::print_rows_by_load();
  return 0;
}
