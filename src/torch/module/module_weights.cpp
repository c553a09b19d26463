#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "isthmus/error.h"
#include "torch/base/interpreter.h"
#include "torch/base/tensors.h"
#include "torch/cuda/cuda_weights.h"
#include "torch/module/bindings.h"

namespace isthmus::torch_backend {
namespace {

using kernels::kWeightHeaderBytes;

TensorWeights weights_on(const at::Device& device) {
  static const std::shared_ptr<Device> host = make_host_device();
  return device.is_cuda() ? make_cuda_weights(device) : TensorWeights{make_weight_coder(*host), {}, [] {}};
}

at::Tensor empty_bytes(int64_t num_bytes, const at::Device& device) {
  return at::empty({std::max<int64_t>(num_bytes, 1)}, at::TensorOptions(at::kByte).device(device));
}

// Views the bits of a tensor, which Python hands over as whole words of 8 bytes at a multiple of 16, as a shard.
Buffer shard_of(const at::Tensor& words, int64_t num_bytes, at::ScalarType type) {
  ISTHMUS_CHECK(Error, words.scalar_type() == at::kByte && words.is_contiguous() && num_bytes >= 0, num_bytes,
                " bytes of weights in ", words.numel(), " of ", words.scalar_type());
  ISTHMUS_CHECK(Error, words.numel() % 8 == 0 && words.numel() >= num_bytes, num_bytes, " bytes of weights in ",
                words.numel(), " bytes of words");
  DataType dtype = floating_dtype(type).value_or(DataType::kByte);
  dtype = WeightPackets::is_coded(dtype) ? dtype : DataType::kByte;
  return {words.data_ptr(), num_bytes / element_bytes(dtype), dtype};
}

// Returns header and packet, on the device.
at::Tensor encode(const TensorWeights& weights, const at::Tensor& old_words, Buffer before, Buffer shard) {
  const at::Device device = old_words.device();
  const at::Tensor sent = empty_bytes(weight_sent_bytes(shard), device);
  const at::Tensor scratch = empty_bytes(weights.coder->encode_scratch_bytes(shard), device);
  WeightHeader header;
  header.dtype = shard.dtype;
  header.num_elements = static_cast<uint64_t>(shard.num_elements);
  header.has_replica = 1;
  weights.coder->encode({header, before, shard, byte_buffer(old_words), byte_buffer(sent)},
                        {weights.stream, byte_buffer(scratch)});
  return sent;
}

WeightHeader header_of(const at::Tensor& sent) {
  WeightHeader header;
  at::from_blob(&header, {kWeightHeaderBytes}, at::kByte).copy_(sent.narrow(0, 0, kWeightHeaderBytes));
  return header;
}

// Returns what turns the old bits into the new ones: a header, and a packet if they differ.
at::Tensor encode_weights(const at::Tensor& old_words, const at::Tensor& new_words, int64_t num_bytes,
                          at::ScalarType type) {
  const WithoutGil without_gil;
  const at::NoGradGuard no_grad;
  const TensorWeights weights = weights_on(old_words.device());
  const Buffer shard = shard_of(new_words, num_bytes, type);
  const at::Tensor sent = encode(weights, old_words, shard_of(old_words, num_bytes, type), shard);
  const auto packet_bytes = static_cast<int64_t>(header_of(sent).packet_bytes);
  return sent.narrow(0, 0, kWeightHeaderBytes + packet_bytes).to(at::kCPU);
}

// Throws PacketError unless the header is of such a packet, of a shard like this one.
void check_header(const WeightHeader& header, int64_t packet_bytes, ConstBuffer shard) {
  const auto expect_equal = [](const char* what, uint64_t value, uint64_t expected) {
    ISTHMUS_CHECK(PacketError, value == expected, what, " ", value, ", where ", expected, " is expected");
  };
  expect_equal("magic", header.magic, WeightHeader::kMagic);
  expect_equal("version of packets of weights", header.version, WeightHeader::kVersion);
  ISTHMUS_CHECK(PacketError, header.is_whole(), "corrupt header");
  expect_equal("data type", static_cast<uint64_t>(header.dtype), static_cast<uint64_t>(shard.dtype));
  expect_equal("number of elements", header.num_elements, static_cast<uint64_t>(shard.num_elements));
  expect_equal("bytes of the packet", header.packet_bytes, static_cast<uint64_t>(packet_bytes));
  expect_equal("odd bytes", header.packet_bytes % 8, 0);
}

// Returns the new bits, in new memory; nothing if they are the old ones. record: what encode_weights() returned.
std::optional<at::Tensor> decode_weights(const at::Tensor& old_words, int64_t num_bytes, at::ScalarType type,
                                         const py::buffer& record) {
  const py::buffer_info info = record.request();
  const WithoutGil without_gil;
  const at::NoGradGuard no_grad;
  const int64_t packet_bytes = info.size * info.itemsize - kWeightHeaderBytes;
  ISTHMUS_CHECK(PacketError, packet_bytes >= 0, packet_bytes + kWeightHeaderBytes, " bytes, where a header has ",
                kWeightHeaderBytes);
  WeightHeader header;
  std::memcpy(&header, info.ptr, sizeof(header));
  const at::Device device = old_words.device();
  const at::Tensor row = empty_bytes(weight_row_bytes(packet_bytes), at::kCPU);
  std::memcpy(row.data_ptr(), static_cast<const std::byte*>(info.ptr) + sizeof(header),
              static_cast<size_t>(packet_bytes));
  const Buffer before = shard_of(old_words, num_bytes, type);
  check_header(header, packet_bytes, before);

  const TensorWeights weights = weights_on(device);
  at::Tensor new_words;
  uint64_t checksum = 0;
  if (device.is_cpu() && old_words.numel() > 0 && packet_bytes > 0) {  // both in one pass
    new_words = at::empty_like(old_words);
    checksum = checksum_of(byte_buffer(old_words), new_words.data_ptr());
  } else {
    checksum = header_of(encode(weights, old_words, before, before)).replica_checksum;
  }
  ISTHMUS_CHECK(Error, checksum == header.replica_checksum, "the old bits have the checksum ", checksum,
                ", but those of the update have ", header.replica_checksum,
                ": it is for other weights, or for this tensor before or after another update");
  if (packet_bytes == 0) {
    return std::nullopt;
  }
  if (!new_words.defined()) {
    new_words = old_words.clone();
  }
  const at::Tensor packets = row.to(device);
  const at::Tensor headers = at::from_blob(&header, {kWeightHeaderBytes}, at::kByte).to(device);
  const Buffer replica = shard_of(new_words, num_bytes, type);
  const at::Tensor scratch = empty_bytes(weights.coder->decode_scratch_bytes(replica, 1), device);
  weights.coder->decode({.headers = byte_buffer(headers),
                         .num_nodes = 1,
                         .node = 1,
                         .packets = byte_buffer(packets),
                         .shard = replica,
                         .replica = replica},
                        {weights.stream, byte_buffer(scratch)});
  weights.throw_if_faulted();
  return new_words;
}

}  // namespace

void bind_weights(py::module_& module) {
  module.def("encode_weights", &encode_weights, py::arg("old_words"), py::arg("new_words"), py::arg("num_bytes"),
             py::arg("dtype"),
             "Header and packet of what turns the old bits of a tensor into the new ones. Words: its bits as bytes, in "
             "whole words of 8 at a multiple of 16.");
  module.def("decode_weights", &decode_weights, py::arg("old_words"), py::arg("num_bytes"), py::arg("dtype"),
             py::arg("record"),
             "The new bits, in new memory; None if they are the old ones. PacketError: the record is not what "
             "encode_weights() returned; Error: that was for other old bits.");
}

}  // namespace isthmus::torch_backend
