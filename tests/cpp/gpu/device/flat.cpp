// The single-tier form of tagc against the CPU's.
#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/gpu/device/coding.h"
#include "tests/cpp/gpu/device/tests.h"
#include "tests/cpp/support/flat_coding.h"

namespace isthmus::gpu {
namespace {

constexpr int kChunks = test::kFlatChunks;

void compare(const Options& options, const HostArray& gradient) {
  const std::unique_ptr<Gpu> gpu = make_gpu();
  const auto flat = make_tagc_flat(options, gpu->device());
  const auto flat_of_cpu = make_tagc_flat(options, *make_host_device());
  test::expect_flat_as_on_cpu(gpu->device(), *flat, *flat_of_cpu, gradient, 2);
}

std::string name_of(const Options& options, DataType dtype) {
  return std::string("flat tagc, ") + to_string(dtype) + ", ratio " + std::to_string(static_cast<int>(options.ratio));
}

Options flat_options(double ratio, double sparsity) {
  Options options = tagc_options(ratio, sparsity);
  options.tiers = TierMode::kFlat;
  return options;
}

}  // namespace

void add_flat(bool is_short) {
  const auto check = [](const Options& options, const std::string& what,
                        const std::function<std::vector<float>()>& values, DataType dtype = DataType::kFloat32) {
    add_test("Codecs", name_of(options, dtype) + ", " + what, [=] { compare(options, HostArray(values(), dtype)); });
  };
  const auto piece = [](Data data, int64_t shard_elements, uint32_t seed) {
    return [=] { return make_piece(data, kChunks * shard_elements, seed); };
  };
  const std::vector<int64_t> sizes = is_short ? std::vector<int64_t>{1, 63, 65, 1025}
                                              : std::vector<int64_t>{1, 63, 64, 65, 1025, 4097, 300001, 1048577};
  const Options all_settings[] = {flat_options(2, .8), flat_options(10, .9875)};
  for (const Options& options : all_settings) {
    for (const int64_t elements : sizes) {
      check(options, std::to_string(elements) + " elements", piece(Data::kHeavyTail, elements, 2));
    }
  }
  const int64_t some = is_short ? 2001 : 300001;
  for (const DataType dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    check(all_settings[0], "16 bits", piece(Data::kHeavyTail, some, 4), dtype);
  }
  for (const Data data : all_data()) {
    check(flat_options(4, .9), to_string(data), piece(data, some, 3));
  }
  check(flat_options(10, 0), "nothing peels", piece(Data::kHeavyTail, some, 5));
  const auto not_finite = [=] {
    std::vector<float> values = make_piece(Data::kHeavyTail, kChunks * some, 6);
    values[5] = values[static_cast<size_t>(some) + 70] = kNan;
    values[values.size() / 2] = kInfinity;
    values.back() = -kInfinity;
    return values;
  };
  for (const Options& options : all_settings) {
    check(options, "NaN and Inf", not_finite);
  }
}

}  // namespace isthmus::gpu
