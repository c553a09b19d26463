// Packets of codec quant: a packet is accepted if and only if it is what was sent, and then packet and residual
// together are what went in, but for one rounding. One that was made up, with a checksum that fits, does no harm.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/quant/host.h"
#include "kernels/quant/layout.h"
#include "tests/fuzz/packets.h"

using namespace isthmus;
using namespace isthmus::fuzz;

namespace {

Options choose_options(FuzzedDataProvider& provider) {
  Options options;
  options.bits = provider.ConsumeIntegralInRange<int64_t>(1, 8);
  options.error_feedback = provider.ConsumeBool() ? ErrorFeedback::kOn : ErrorFeedback::kOff;
  return options;
}

// A group that is not finite is NaN and keeps its residual; so does what is not finite in the tail, alone.
void check_conservation(const std::vector<float>& piece, const std::vector<float>& old_residual,
                        const std::vector<float>& residual, const std::vector<float>& decoded) {
  const bool feedback = !residual.empty();
  const auto num_elements = static_cast<int64_t>(piece.size());
  const int64_t tail = num_elements / kernels::kQuantGroupElements * kernels::kQuantGroupElements;
  const auto sum = [&](int64_t i) { return feedback ? piece[i] + old_residual[i] : piece[i]; };
  for (int64_t begin = 0; begin < num_elements;) {
    const int64_t end = begin < tail ? begin + kernels::kQuantGroupElements : begin + 1;
    bool all_finite = true;
    for (int64_t i = begin; i < end; ++i) {
      all_finite = all_finite && std::isfinite(sum(i));
    }
    for (int64_t i = begin; i < end; ++i) {
      require(std::isfinite(decoded[i]) == all_finite, "what is finite arrives finite, and the rest does not");
      require(begin < tail || !all_finite || decoded[i] == sum(i), "the tail is exact");
      if (feedback && !all_finite) {
        require(residual[i] == old_residual[i], "a group that is not finite keeps its residual");
      } else if (feedback) {
        const double lost = sum(i) - (static_cast<double>(decoded[i]) + residual[i]);
        const double most = std::max(std::fabs(sum(i)), std::fabs(decoded[i]));
        require(std::isfinite(residual[i]), "residuals are finite");
        require(std::fabs(lost) <= 0x1p-23 * most, "packet and residual are what went in");
      }
    }
    begin = end;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider provider(data, size);
  QuantCodec codec(choose_options(provider));
  Coded coded(codec, provider);
  check_conservation(coded.piece, coded.old_residual, coded.residual, coded.decoded);
  coded.damage_and_reseal(provider);
  coded.is_accepted();  // or not: it does no harm
  return 0;
}
