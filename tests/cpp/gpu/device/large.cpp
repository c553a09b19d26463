// Pieces beyond what 32 bits can count: more than 2^31 bytes, more than 2^31 elements.
#include <algorithm>
#include <cstring>
#include <string>

#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/gpu/device/coding.h"
#include "tests/cpp/gpu/device/tests.h"

namespace isthmus::gpu {
namespace {

constexpr int64_t kPatternElements = 10000019;  // a prime: no block sees the same numbers twice

// Numbers that repeat, but never at the same place of a block: drawing billions would take minutes.
HostArray repeated_pattern(int64_t num_elements, DataType dtype) {
  const HostArray pattern(make_piece(Data::kHeavyTail, std::min(num_elements, kPatternElements), 30), dtype);
  HostArray values(num_elements, dtype);
  for (int64_t begin = 0; begin < num_elements; begin += pattern.num_elements()) {
    const int64_t count = std::min(pattern.num_elements(), num_elements - begin);
    const Buffer part = values.buffer().slice(begin, count);
    std::memcpy(part.data, pattern.view().data, static_cast<size_t>(part.bytes()));
  }
  return values;
}

// Throws NotRun where the device's memory does not suffice: pieces, sums, residuals, packets and scratch of that many.
void require_memory(Gpu& gpu, int64_t num_elements) {
  const int64_t bytes = 20 * num_elements;
  if (gpu.free_bytes() < bytes) {
    throw NotRun(std::to_string(gpu.free_bytes() >> 30) + " GiB of the GPU are free; this takes " +
                 std::to_string(bytes >> 30));
  }
}

void compare(const CodingShape& shape, int64_t num_elements) {
  const std::unique_ptr<Gpu> gpu = make_gpu();
  require_memory(*gpu, num_elements);
  const Stream stream = gpu->device().lane(Lane::kEncode);
  const HostArray piece = repeated_pattern(num_elements, shape.piece);
  DeviceCoding on_device(gpu->device(), shape, num_elements);
  HostCoding on_host(shape, num_elements);
  on_device.piece().set(piece.view());
  on_device.set_context(kContext, stream);
  on_device.encode(stream);
  on_device.decode(stream);
  on_host.encode(piece.view(), 0, kContext);
  on_host.decode(kContext);
  require_equal(on_device, on_host);
  gpu->device().throw_if_faulted();
}

}  // namespace

void add_large() {
  constexpr int64_t kBytes = (int64_t{1} << 29) + 1025;     // as float32 more than 2^31 bytes
  constexpr int64_t kElements = (int64_t{1} << 31) + 1025;  // more than 2^31 elements
  const CodingShape none = {.codec = "none", .options = {}, .wire = DataType::kBFloat16, .piece = DataType::kBFloat16};
  const CodingShape tagc = {.codec = "tagc", .options = tagc_options(10, .9875)};
  const CodingShape quant = {.codec = "quant", .options = quant_options(4), .piece = DataType::kBFloat16};
  CodingShape tagc_bfloat16 = tagc;
  tagc_bfloat16.piece = DataType::kBFloat16;
  add_test("Large", tagc.name() + ", 2^29 + 1025 elements", [=] { compare(tagc, kBytes); });
  add_test("Large", none.name() + ", 2^31 + 1025 elements", [=] { compare(none, kElements); });
  add_test("Large", quant.name() + ", 2^31 + 1025 elements", [=] { compare(quant, kElements); });
  add_test("Large", tagc_bfloat16.name() + ", 2^31 + 1025 elements", [=] { compare(tagc_bfloat16, kElements); });
}

}  // namespace isthmus::gpu
