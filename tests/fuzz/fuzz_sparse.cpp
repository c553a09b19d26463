// Packets of codec sparse: a packet is accepted if and only if it is what was sent, and then packet and residual
// together are what went in, without any error. One that was made up, with a checksum that fits, does no harm.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "codec/sparse/host.h"
#include "packets.h"

using namespace isthmus;
using namespace isthmus::fuzz;

namespace {

constexpr int64_t kBlockElements = kernels::kSparseBlockElements;

Options choose_options(FuzzedDataProvider& provider) {
  constexpr const char* kValueTypes[] = {"fp32", "bf16", "int8"};
  constexpr double kSparsity[] = {0.9875, 0.95, 0.7, 0};
  Options options;
  options.value_type = provider.PickValueInArray(kValueTypes);
  options.sparsity = provider.PickValueInArray(kSparsity);
  options.error_feedback = provider.ConsumeIntegralInRange<int64_t>(0, 3) == 1 ? "off" : "on";
  return options;
}

// visit(begin, end) for each block of a piece.
template <typename Visit>
void for_each_block(int64_t num_elements, Visit visit) {
  for (int64_t begin = 0; begin < num_elements; begin += kBlockElements) {
    visit(begin, std::min(begin + kBlockElements, num_elements));
  }
}

// What arrives and what stays of each block is what went in; or NaN and what was there, if that is not finite.
// Residuals are empty without error feedback: then less arrives.
void check_conservation(const std::vector<float>& piece, const std::vector<float>& old_residual,
                        const std::vector<float>& residual, const std::vector<float>& decoded) {
  const bool feedback = !residual.empty();
  const auto sum = [&](int64_t i) { return feedback ? piece[i] + old_residual[i] : piece[i]; };
  for_each_block(static_cast<int64_t>(piece.size()), [&](int64_t begin, int64_t end) {
    bool all_finite = true;
    for (int64_t i = begin; i < end; ++i) {
      all_finite = all_finite && std::isfinite(sum(i));
    }
    for (int64_t i = begin; i < end; ++i) {
      if (!all_finite) {
        require(std::isnan(decoded[i]) && (!feedback || residual[i] == old_residual[i]),
                "a block that is not finite says so and keeps its residual");
      } else {
        require(std::isfinite(decoded[i]), "what is finite arrives finite");
        require(!feedback || static_cast<double>(decoded[i]) + residual[i] == static_cast<double>(sum(i)),
                "packet and residual are what went in");
      }
    }
  });
}

// Of each block no more elements than it keeps have changed from 0; or all of them, to NaN.
void check_few_changed(const kernels::SparseShape& shape, const std::vector<float>& decoded) {
  for_each_block(shape.num_elements, [&](int64_t begin, int64_t end) {
    const auto first = decoded.begin() + begin;
    const auto last = decoded.begin() + end;
    const int64_t changed = (end - begin) - std::count(first, last, 0.0F);
    require(changed <= shape.keep_of(begin / kBlockElements) ||
                std::all_of(first, last, [](float value) { return std::isnan(value); }),
            "a block gets no more than it keeps");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kMostElements = 5000;
  FuzzedDataProvider provider(data, size);
  const Options options = choose_options(provider);
  const int64_t num_elements = consume_size(provider, kMostElements);
  const uint32_t seed = provider.ConsumeIntegral<uint16_t>();
  const PacketContext context{.unit_hash = provider.ConsumeIntegral<uint64_t>(),
                              .step = provider.ConsumeIntegral<uint16_t>(),
                              .sender = static_cast<uint16_t>(seed)};

  SparseCodec codec(options);
  const int64_t residual_elements = codec.keeps_residual() ? num_elements : 0;
  const std::vector<float> piece = make_values(num_elements, seed);
  const std::vector<float> old_residual = make_values(residual_elements, 2 * (seed + 1));  // residuals are finite
  std::vector<float> residual = old_residual;
  const Bytes packet(codec.packet_bytes(num_elements));
  codec.encode(view(piece), view(residual), packet.buffer(), context, {});

  std::vector<float> decoded(num_elements);
  const auto decode = [&] { codec.decode_sum(packet.buffer(), 1, view(decoded), context, {}); };
  require(accepts(decode), "what was sent is accepted");
  check_conservation(piece, old_residual, residual, decoded);

  const std::vector<uint8_t> sent = packet.copy();
  damage(provider, packet);
  std::fill(decoded.begin(), decoded.end(), 0.0F);
  require(accepts(decode) == (packet.copy() == sent), "a packet is accepted if and only if it is what was sent");

  reseal(packet);
  std::fill(decoded.begin(), decoded.end(), 0.0F);
  if (accepts(decode)) {
    check_few_changed(SparseSettings(options).shape(num_elements), decoded);
  }
  return 0;
}
