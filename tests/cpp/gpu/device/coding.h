// One unit on a device, and the same unit on the CPU: encoded and decoded side by side.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "isthmus/codec.h"
#include "isthmus/options.h"
#include "kernels/block/device.h"
#include "tests/cpp/gpu/device/gpu.h"

namespace isthmus::gpu {

// What a unit is made of. offset: elements that lie before the piece, whose address is aligned.
struct CodingShape {
  std::string codec;
  Options options;
  DataType wire = DataType::kFloat32;   // of codec `none`
  DataType piece = DataType::kFloat32;  // as the device gets it; the CPU gets it converted
  int ranks_per_node = 2;
  int num_packets = 1;
  int64_t offset = 0;

  std::string name() const;
};

inline constexpr PacketContext kContext = {.unit_hash = 0xfedcba9876543210, .step = 7, .segment = 3, .sender = 258};

Options tagc_options(double ratio, double sparsity);
Options quant_options(int64_t bits, bool error_feedback = false);

// The unit on the device. What it enqueues stays enqueued: nothing here waits but get().
class DeviceCoding {
 public:
  DeviceCoding(Device& device, const CodingShape& shape, int64_t num_elements);

  void set_context(PacketContext context, Stream stream);
  void next_step(Stream stream);
  void encode(Stream stream);
  void decode(Stream stream);
  // As a reduction does: the own piece in its type, a scale, and a shard of that type, which takes the place of out().
  void decode_to_shard(Stream stream);
  // Each packet to its place in places().
  void decode_each(Stream stream);

  DeviceArray& piece() { return piece_; }
  DeviceArray& residual() { return residual_; }
  DeviceArray& packets() { return packets_; }
  DeviceArray& out() { return out_; }
  DeviceArray& places() { return places_; }
  int64_t packet_bytes() const { return packet_bytes_; }

 private:
  PacketContext on_device() const;
  ShardSum sum();
  ShardSum sum_to_shard();

  Device& device_;
  const CodingShape shape_;
  std::unique_ptr<Codec> codec_;
  int64_t packet_bytes_;
  DeviceArray piece_;
  DeviceArray residual_;
  DeviceArray packets_;
  DeviceArray out_;
  DeviceArray places_;  // where there are several packets
  DeviceArray scratch_;
  DeviceArray context_;
  PacketContext of_host_ = {};  // what is not in context_
};

// The unit on the CPU.
class HostCoding {
 public:
  HostCoding(const CodingShape& shape, int64_t num_elements);

  void encode(ConstBuffer piece, int packet, PacketContext context);
  void decode(PacketContext context);
  void decode_each(PacketContext context);

  HostArray& residual() { return residual_; }
  HostArray& packets() { return packets_; }
  HostArray& out() { return out_; }
  HostArray& places() { return places_; }
  const CodecCounts& counts() const { return counts_; }

 private:
  const CodingShape shape_;
  std::unique_ptr<HostCodec> codec_;
  int64_t packet_bytes_;
  HostArray residual_;
  HostArray packets_;
  HostArray out_;
  HostArray places_;
  CodecCounts counts_;
};

// Throws unless two arrays are equal, bit for bit; but any NaN equals any other.
void require_equal(const DeviceArray& on_device, const HostArray& on_host, const std::string& what);
// Throws unless packets, residuals and sums are.
void require_equal(DeviceCoding& on_device, HostCoding& on_host);

// What the device says of packets in the end; "" if nothing within a while. Never waits for the device.
std::string complaint_of(Device& device);

}  // namespace isthmus::gpu
