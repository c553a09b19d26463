// The single-tier form of tagc against the CPU's: indexes, sketches, residuals, sums and counts.
#include "kernels/tagc/flat.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/gpu/device/coding.h"
#include "tests/cpp/gpu/device/tests.h"

namespace isthmus::gpu {
namespace {

constexpr int kChunks = 3;

// One rank's arrays, and the parts of a reduction on them. The chunks stand for the ranks that put something into one
// shard.
template <typename Array>
struct Coding {
  Array gradient, residuals, indexes, sketches, out, scratch;

  void encode(TagcFlat& flat, Stream stream, PacketContext context, CodecCounts& counts) {
    const FlatChunks chunks = {kChunks, gradient.buffer(), residuals.buffer(), indexes.buffer(), sketches.buffer()};
    counts += flat.encode(chunks, context, {stream, scratch.buffer()});
  }
  void merge(TagcFlat& flat, Device& device, Stream stream) {
    for (int chunk = 1; chunk < kChunks; ++chunk) {
      flat.merge(part(indexes, chunk), part(indexes, 0), stream);
      device.add(part(sketches, chunk), part(sketches, 0), stream);
    }
  }
  void decode(TagcFlat& flat, Stream stream, PacketContext context, CodecCounts& counts) {
    counts += flat.decode(part(indexes, 0), part(sketches, 0), out.buffer(), context, {stream, scratch.buffer()});
  }

 private:
  static Buffer part(Array& array, int chunk) {
    return array.buffer().part(chunk, array.buffer().num_elements / kChunks);
  }
};

// make(num_elements, dtype) makes an array.
template <typename Array, typename Make>
Coding<Array> make_coding(const TagcFlat& flat, int64_t elements, DataType dtype, const Make& make) {
  const FlatChunks shape = {kChunks, {nullptr, kChunks * elements, dtype}, {}, {}, {}};
  const int64_t scratch_bytes = std::max(flat.encode_scratch_bytes(shape), flat.decode_scratch_bytes(elements));
  return {make(kChunks * elements, dtype),
          make(kChunks * elements, DataType::kFloat32),
          make(kChunks * flat.index_bytes(elements), DataType::kByte),
          make(kChunks * flat.sketch_elements(elements), DataType::kFloat32),
          make(elements, DataType::kFloat32),
          make(scratch_bytes, DataType::kByte)};
}

// The same gradient at each of some steps: residuals differ.
void compare(const Options& options, const HostArray& gradient, int num_steps) {
  const std::unique_ptr<Gpu> gpu = make_gpu();
  const std::shared_ptr<Device> cpu = make_host_device();
  const Stream stream = gpu->device().lane(Lane::kEncode);
  const int64_t elements = gradient.num_elements() / kChunks;
  const DataType dtype = gradient.view().dtype;
  const auto flat = make_tagc_flat(options, gpu->device());
  const auto flat_of_cpu = make_tagc_flat(options, *cpu);
  auto on_device = make_coding<DeviceArray>(*flat, elements, dtype, [&](int64_t num_elements, DataType type) {
    return DeviceArray(gpu->device(), num_elements, type);
  });
  auto on_host = make_coding<HostArray>(
      *flat_of_cpu, elements, dtype, [](int64_t num_elements, DataType type) { return HostArray(num_elements, type); });
  on_device.gradient.set(gradient.view());
  on_device.residuals.set(on_host.residuals.view());
  on_host.gradient = gradient;
  CodecCounts counts;
  CodecCounts counts_of_host;
  PacketContext context = kContext;
  for (int step = 0; step < num_steps; ++step) {
    on_device.encode(*flat, stream, context, counts);
    on_host.encode(*flat_of_cpu, {}, context, counts_of_host);
    require_equal(on_device.indexes, on_host.indexes, "indexes");
    require_equal(on_device.sketches, on_host.sketches, "sketches");
    require_equal(on_device.residuals, on_host.residuals, "residuals");
    on_device.merge(*flat, gpu->device(), stream);
    on_host.merge(*flat_of_cpu, *cpu, {});
    require_equal(on_device.indexes, on_host.indexes, "merged indexes");
    on_device.decode(*flat, stream, context, counts);
    on_host.decode(*flat_of_cpu, {}, context, counts_of_host);
    require(same_bytes(on_device.out.get().view(), on_host.out.view()), "sums differ");
    ++context.step;
  }
  gpu->synchronize();
  counts += gpu->device().codec_counts();
  require(counts.encoded_elements == counts_of_host.encoded_elements, "encoded elements are counted differently");
  require(counts.kept_elements == counts_of_host.kept_elements, "kept elements are counted differently");
  require(counts.held_back_elements == 0, "held back elements are counted");
  require(counts.estimated_elements == counts_of_host.estimated_elements, "estimates are counted differently");
  require(counts.non_finite_blocks == counts_of_host.non_finite_blocks, "non-finite blocks are counted differently");
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
    add_test("Codecs", name_of(options, dtype) + ", " + what, [=] { compare(options, HostArray(values(), dtype), 2); });
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
