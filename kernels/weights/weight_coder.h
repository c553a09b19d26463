// Codes weights in the memory of a device: on the CPU at once, on a GPU by passes that it enqueues.
#pragma once

#include <cstdint>
#include <memory>

#include "isthmus/codec.h"
#include "isthmus/device.h"
#include "kernels/weights/weight_packet.h"

namespace isthmus {

class DeviceLauncher;
namespace kernels {
struct DeviceFault;
}

// All memory is the device's, and stays as long as the stream works on it. Each shard begins at a multiple of its
// elements' size, everything else at a multiple of 16 bytes.
struct WeightEncode {
  WeightHeader header;  // all but the packet's bytes and the checksums
  ConstBuffer before;   // the replica's part for this node, in the type and size of `shard`; without memory: there is
                        // none, and the header alone is written
  ConstBuffer shard;
  ConstBuffer replica;  // whole words of 8 bytes, which ranks compare; without memory: not compared now
  Buffer sent;          // of weight_sent_bytes(): the header, then the packet
};

// Row p of `packets` begins with the packet of node p, as its header says.
struct WeightDecode {
  ConstBuffer headers;  // of all nodes of the rail, by node; the host has checked them
  int64_t num_nodes = 0;
  int64_t node = 0;     // this rank's, whose row is not read; num_nodes: none of them
  ConstBuffer packets;  // num_nodes rows of weight_row_bytes()
  ConstBuffer shard;    // this node's
  Buffer replica;       // the shards of all nodes, by node
};

int64_t weight_sent_bytes(ConstBuffer shard);
// longest_packet: of all nodes but this one, in bytes.
int64_t weight_row_bytes(int64_t longest_packet);

// Holds no state of units. One thread at a time calls it.
class WeightCoder {
 public:
  virtual ~WeightCoder() = default;

  // Writes header and packet of what turns `before` into `shard`.
  virtual int64_t encode_scratch_bytes(ConstBuffer shard) const = 0;
  virtual void encode(const WeightEncode& encode, Workspace workspace) = 0;
  // Turns the replica into the shards of all nodes. For a packet that is damaged, or that no encoder makes, the CPU
  // throws PacketError, and a GPU later, in Device::throw_if_faulted(); the replica is then undefined.
  virtual int64_t decode_scratch_bytes(ConstBuffer shard, int64_t num_nodes) const = 0;
  virtual void decode(const WeightDecode& decode, Workspace workspace) = 0;
};

// The device outlives it.
std::unique_ptr<WeightCoder> make_weight_coder(Device& device);

// Of a GPU, whose launcher outlives it. It throws Error for wrong types, sizes and alignments.
std::unique_ptr<WeightCoder> make_weight_coder_of_gpu(DeviceLauncher& launcher);

// As throw_if_reported(), also for packets of weights.
void throw_if_any_reported(const kernels::DeviceFault& fault);

}  // namespace isthmus
