// Every codec against the CPU's: packets, residuals, sums and counts, over several steps.
#include <string>
#include <vector>

#include "tests/cpp/codec/pieces.h"
#include "tests/cpp/gpu/device/coding.h"
#include "tests/cpp/gpu/device/tests.h"

namespace isthmus::gpu {
namespace {

void require_equal_counts(const CodecCounts& device, const CodecCounts& host) {
  require(device.kept_elements == host.kept_elements, "kept elements are counted differently");
  require(device.held_back_elements == host.held_back_elements, "held back elements are counted differently");
  require(device.non_finite_blocks == host.non_finite_blocks, "non-finite blocks are counted differently");
}

// A piece in its type. A NaN of float16 has bits that no conversion makes.
HostArray typed(const std::vector<float>& values, DataType dtype) {
  HostArray piece(values, dtype);
  auto* bits = piece.buffer().as<uint16_t>();
  for (int64_t i = 0; dtype == DataType::kFloat16 && i < piece.buffer().num_elements; ++i) {
    bits[i] = (bits[i] & 0x7fff) > 0x7c00 ? 0xfe05 : bits[i];
  }
  return piece;
}

// Encodes and decodes one piece after the other, in steps that follow each other.
void compare(const CodingShape& shape, const std::vector<std::vector<float>>& pieces) {
  const std::unique_ptr<Gpu> gpu = make_gpu();
  const Stream stream = gpu->device().lane(Lane::kEncode);
  const auto num_elements = static_cast<int64_t>(pieces[0].size());
  DeviceCoding on_device(gpu->device(), shape, num_elements);
  HostCoding on_host(shape, num_elements);
  on_device.set_context(kContext, stream);
  PacketContext context = kContext;
  for (const std::vector<float>& values : pieces) {
    const HostArray piece = typed(values, shape.piece);
    on_device.piece().set(piece.view());
    on_device.encode(stream);
    on_host.encode(piece.view(), 0, context);
    on_device.decode(stream);
    on_host.decode(context);
    require_equal(on_device, on_host);
    on_device.next_step(stream);
    ++context.step;
  }
  gpu->synchronize();
  gpu->device().throw_if_faulted();
  if (shape.codec != "none") {
    require_equal_counts(gpu->device().codec_counts(), on_host.counts());
  }
}

// Two pieces alike.
std::vector<std::vector<float>> drawn(Data data, int64_t num_elements) {
  return {make_piece(data, num_elements, 2), make_piece(data, num_elements, 3)};
}

void check_sizes(const CodingShape& shape, const std::vector<int64_t>& sizes) {
  for (const int64_t num_elements : sizes) {
    add_test("Codecs", shape.name() + ", " + std::to_string(num_elements) + " elements",
             [=] { compare(shape, drawn(Data::kHeavyTail, num_elements)); });
  }
}

// The type on the wire, and each type that a piece may have then.
std::vector<CodingShape> none_shapes() {
  std::vector<CodingShape> shapes;
  for (const DataType wire : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16, DataType::kFloat64}) {
    shapes.push_back({.codec = "none", .options = {}, .wire = wire, .piece = wire});
    if (accumulate_dtype(wire) != wire) {
      shapes.push_back({.codec = "none", .options = {}, .wire = wire, .piece = accumulate_dtype(wire)});
    }
  }
  return shapes;
}

std::vector<CodingShape> tagc_shapes() {
  std::vector<CodingShape> shapes;
  for (const DataType piece : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    for (const Options& options : {tagc_options(2, .8), tagc_options(10, .9875)}) {
      shapes.push_back({.codec = "tagc", .options = options, .piece = piece});
    }
  }
  return shapes;
}

CodingShape tagc_held_back_shape() {
  return {.codec = "tagc", .options = tagc_options(10, 0)};  // all are kept, and most held back
}

// Each width and each type, with feedback and without.
std::vector<CodingShape> quant_shapes() {
  constexpr DataType kPieces[] = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16};
  std::vector<CodingShape> shapes;
  for (const int64_t bits : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const bool feedback : {true, false}) {
      shapes.push_back({.codec = "quant", .options = quant_options(bits, feedback), .piece = kPieces[(bits - 1) % 3]});
    }
  }
  return shapes;
}

void check_misaligned(CodingShape shape, int64_t num_elements) {
  for (const int64_t offset : {1, 3}) {
    shape.offset = offset;
    add_test("Codecs",
             shape.name() + " by " + std::to_string(offset) + ", " + std::to_string(num_elements) + " elements",
             [=] { compare(shape, {make_piece(Data::kHeavyTail, num_elements, 10)}); });
  }
}

void check_data(int64_t num_elements) {
  for (const Data data : all_data()) {
    for (const CodingShape& shape : {CodingShape{.codec = "tagc", .options = tagc_options(4, .9)},
                                     {.codec = "tagc", .options = tagc_options(10, .5)},
                                     {.codec = "quant", .options = quant_options(4, true)},
                                     {.codec = "quant", .options = quant_options(2)},
                                     {.codec = "none", .options = {}, .wire = DataType::kFloat16}}) {
      add_test("Codecs", shape.name() + ", " + to_string(data), [=] { compare(shape, drawn(data, num_elements)); });
    }
  }
}

std::vector<std::vector<float>> pieces_with_other_numbers(int64_t num_elements) {
  std::vector<float> piece = make_piece(Data::kHeavyTail, num_elements, 3);
  piece[5] = kNan;
  piece[piece.size() / 2] = kInfinity;
  piece.back() = -kInfinity;
  return {piece, make_piece(Data::kHeavyTail, num_elements, 4)};
}

void check_not_finite(int64_t num_elements) {
  std::vector<CodingShape> shapes = tagc_shapes();
  for (const std::vector<CodingShape>& more : {none_shapes(), {tagc_held_back_shape()}, quant_shapes()}) {
    shapes.insert(shapes.end(), more.begin(), more.end());
  }
  const auto check = [=](const CodingShape& shape, const std::string& name) {
    add_test("Codecs", name + ", NaN and Inf", [=] { compare(shape, pieces_with_other_numbers(num_elements)); });
  };
  for (const CodingShape& shape : shapes) {
    check(shape, shape.name());
  }
  CodingShape not_divided = {.codec = "none", .options = {}, .wire = DataType::kFloat16, .piece = DataType::kFloat16};
  not_divided.ranks_per_node = 1;
  check(not_divided, not_divided.name() + ", one rank a node");
}

}  // namespace

void add_codecs(bool is_short) {
  const int64_t some = is_short ? 1025 : 100001;
  const std::vector<int64_t> sizes =
      is_short ? std::vector<int64_t>{0, 1, 63, 64, 65, 127, 129, 511, 513, 1025, 4097}
               : std::vector<int64_t>{0, 1, 2, 7, 63, 64, 65, 1023, 1024, 1025, 4097, 12345, 65536, 300001, 1048577};
  for (const std::vector<CodingShape>& shapes :
       {none_shapes(), tagc_shapes(), {tagc_held_back_shape()}, quant_shapes()}) {
    for (const CodingShape& shape : shapes) {  // boundaries are those of a codec, not of its settings
      const bool is_at_end = &shape == &shapes.front() || &shape == &shapes.back();
      check_sizes(shape, is_at_end || !is_short ? sizes : std::vector<int64_t>{1, 805});
    }
    check_misaligned(shapes.front(), some);
    check_misaligned(shapes.back(), some);
  }
  check_data(is_short ? 3001 : 300001);
  check_not_finite(is_short ? 3001 : 300001);
  if (!is_short) {
    check_sizes({.codec = "tagc", .options = tagc_options(10, .9875)}, {10000003});
    check_sizes({.codec = "tagc", .options = tagc_options(1, .999)}, {1024 * 65536 + 1});
  }
}

}  // namespace isthmus::gpu
