// The single-tier form of tagc on a device beside the CPU's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "isthmus/device.h"
#include "kernels/tagc/flat.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::test {

inline constexpr int kFlatChunks = 3;

// One rank's arrays, and the parts of a reduction on them. The chunks stand for the ranks that put something into one
// shard.
template <typename Array>
struct FlatCoding {
  Array gradient, residuals, indexes, sketches, out, scratch;

  // make(num_elements, dtype) makes an array.
  template <typename Make>
  FlatCoding(const TagcFlat& flat, int64_t elements, DataType dtype, const Make& make)
      : gradient(make(kFlatChunks * elements, dtype)),
        residuals(make(kFlatChunks * elements, DataType::kFloat32)),
        indexes(make(kFlatChunks * flat.index_bytes(elements), DataType::kByte)),
        sketches(make(kFlatChunks * flat.sketch_elements(elements), DataType::kFloat32)),
        out(make(elements, DataType::kFloat32)),
        scratch(make(std::max(flat.encode_scratch_bytes(chunks()), flat.decode_scratch_bytes(elements)),
                     DataType::kByte)) {}

  FlatChunks chunks() {
    return {kFlatChunks, gradient.buffer(), residuals.buffer(), indexes.buffer(), sketches.buffer()};
  }
  void encode(TagcFlat& flat, Stream stream, PacketContext context, CodecCounts& counts) {
    counts += flat.encode(chunks(), context, {stream, scratch.buffer()});
  }
  void merge(TagcFlat& flat, Device& device, Stream stream) {
    for (int chunk = 1; chunk < kFlatChunks; ++chunk) {
      flat.merge(part(indexes, chunk), part(indexes, 0), stream);
      device.add(part(sketches, chunk), part(sketches, 0), stream);
    }
  }
  void decode(TagcFlat& flat, Stream stream, PacketContext context, CodecCounts& counts) {
    counts += flat.decode(part(indexes, 0), part(sketches, 0), out.buffer(), context, {stream, scratch.buffer()});
  }

 private:
  static Buffer part(Array& array, int chunk) {
    return array.buffer().part(chunk, array.buffer().num_elements / kFlatChunks);
  }
};

// Indexes, sketches, residuals, sums and counts are those of the CPU. The same gradient, of kFlatChunks chunks, comes
// at each of some steps: residuals differ.
inline void expect_flat_as_on_cpu(Device& device, TagcFlat& flat, TagcFlat& flat_of_cpu, const Array& gradient,
                                  int num_steps) {
  const std::shared_ptr<Device> cpu = make_host_device();
  const Stream stream = device.lane(Lane::kEncode);
  const int64_t elements = gradient.num_elements() / kFlatChunks;
  const DataType dtype = gradient.view().dtype;
  FlatCoding<DeviceArray> on_device(flat, elements, dtype, [&](int64_t num_elements, DataType type) {
    return DeviceArray(device, num_elements, type);
  });
  FlatCoding<Array> on_host(flat_of_cpu, elements, dtype,
                            [](int64_t num_elements, DataType type) { return Array(num_elements, type); });
  const auto expect_equal = [](const DeviceArray& found, const Array& expected, const std::string& what) {
    EXPECT_EQ(first_difference(found.get().view(), expected.view()), -1) << "of the " << what;
  };
  on_device.gradient.set(gradient.view());
  on_device.residuals.set(on_host.residuals.view());
  on_host.gradient = gradient;
  CodecCounts counts;
  CodecCounts expected;
  PacketContext context = {.unit_hash = 0xfedcba9876543210, .step = 7};
  for (int step = 0; step < num_steps; ++step) {
    on_device.encode(flat, stream, context, counts);
    on_host.encode(flat_of_cpu, {}, context, expected);
    expect_equal(on_device.indexes, on_host.indexes, "indexes");
    expect_equal(on_device.sketches, on_host.sketches, "sketches");
    expect_equal(on_device.residuals, on_host.residuals, "residuals");
    on_device.merge(flat, device, stream);
    on_host.merge(flat_of_cpu, *cpu, {});
    expect_equal(on_device.indexes, on_host.indexes, "merged indexes");
    on_device.decode(flat, stream, context, counts);
    on_host.decode(flat_of_cpu, {}, context, expected);
    EXPECT_TRUE(same_bytes(on_device.out.get().view(), on_host.out.view())) << "sums differ";
    ++context.step;
  }
  counts += device.codec_counts();
  EXPECT_EQ(counts.encoded_elements, expected.encoded_elements);
  EXPECT_EQ(counts.kept_elements, expected.kept_elements);
  EXPECT_EQ(counts.held_back_elements, 0);
  EXPECT_EQ(counts.estimated_elements, expected.estimated_elements);
  EXPECT_EQ(counts.non_finite_blocks, expected.non_finite_blocks);
}

}  // namespace isthmus::test
