// Captured graphs of codecs: each replay is the next step.
#include <string>

#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/gpu/device/coding.h"
#include "tests/cpp/gpu/device/tests.h"

namespace isthmus::gpu {
namespace {

// Encode on one lane, decode on another, as the communicator has it.
void replay(const CodingShape& shape, int64_t num_elements) {
  const std::unique_ptr<Gpu> gpu = make_gpu();
  Device& device = gpu->device();
  const Stream caller = gpu->make_stream();
  DeviceCoding on_device(device, shape, num_elements);
  HostCoding on_host(shape, num_elements);
  on_device.set_context(kContext, caller);
  gpu->synchronize();
  const auto once = gpu->capture(caller, [&] {
    const Stream encode = device.lane(Lane::kEncode);
    const Stream decode = device.lane(Lane::kDecode);
    device.order(caller, encode);
    on_device.encode(encode);
    device.order(encode, decode);
    on_device.decode(decode);
    on_device.next_step(decode);
    device.order(decode, caller);
  });
  PacketContext context = kContext;
  for (uint32_t i = 0; i < 4; ++i, ++context.step) {
    const HostArray piece(make_piece(Data::kHeavyTail, num_elements, 20 + i), shape.piece);
    on_device.piece().set(piece.view());
    once();
    gpu->synchronize();
    on_host.encode(piece.view(), 0, context);
    on_host.decode(context);
    require_equal(on_device, on_host);
  }
  device.throw_if_faulted();
}

}  // namespace

void add_graphs(bool is_short) {
  const CodingShape shapes[] = {
      {.codec = "none", .options = {}, .wire = DataType::kFloat32},
      {.codec = "none", .options = {}, .wire = DataType::kBFloat16, .piece = DataType::kBFloat16},
      {.codec = "tagc", .options = tagc_options(10, .9875)},
      {.codec = "tagc", .options = tagc_options(2, .8), .piece = DataType::kBFloat16},
      {.codec = "quant", .options = quant_options(4), .piece = DataType::kBFloat16},
      {.codec = "quant", .options = quant_options(1, true)}};
  for (const CodingShape& shape : shapes) {
    for (const int64_t num_elements : {int64_t{1}, is_short ? int64_t{3001} : int64_t{400001}}) {
      add_test("Graphs", shape.name() + ", " + std::to_string(num_elements) + " elements: four replays",
               [=] { replay(shape, num_elements); });
    }
  }
}

}  // namespace isthmus::gpu
