// Encodes packets, updates the unit's residual, and fills in the packets' context.
#pragma once

#include <cstdint>

#include "communicator/plan/reduction_planner.h"
#include "communicator/run/run.h"
#include "isthmus/codec.h"

namespace isthmus {

// Stateless. The device outlives it.
class PacketCoder {
 public:
  explicit PacketCoder(Device& device) : device_(device) {}

  // The context of packets that are coded now; their step is counted afterwards. sender: the node that encodes the
  // first packet, by its place on the rail. It seeds the codec, so it is no rank: copies of a parameter on other rails
  // must get the same bits.
  PacketContext context_for(const ReductionPlan& plan, PacketUse use, int sender, uint8_t segment = 0) const;
  void count_packets(const Run& run, const ReductionPlan& plan, PacketUse use) const;

  // Encodes one segment of all pieces, with the same bits as encode() for each. decode_shard() decodes a segment of the
  // shard. Both use the run's scratch memory, and the last segment counts the step.
  void encode_pieces(Run& run, const ReductionPlan& plan, const PieceSet& set, PacketContext context,
                     bool is_last) const;
  void decode_shard(Run& run, const ReductionPlan& plan, const ShardSum& sum, PacketContext context,
                    bool is_last) const;

  // Called after the last encoding of a step with this residual of the unit's. See Device::drop_residual_after_spike().
  void end_step(Run& run, const ReductionPlan& plan, const Residual& residual) const;

  // Encodes a segment of a piece or of a result. residual: the matching part of the unit's, or empty. A plan that
  // sends the residual sends it exactly and leaves zeros. One that measures adds what the codec dropped to the unit's
  // error.
  void encode(Run& run, const ReductionPlan& plan, Codec& codec, ConstBuffer values, Buffer residual, Buffer packet,
              const PacketContext& context, Workspace workspace) const;

 private:
  // Where a GPU reads unit and step of these packets and counts steps. Null on the CPU, and for plans without state.
  static DeviceContext* context_on_device(const ReductionPlan& plan, PacketUse use);
  Buffer in_float32(Run& run, ConstBuffer values, ConstBuffer residual) const;
  void measure_error(Run& run, const ReductionPlan& plan, Codec& codec, ConstBuffer given, ConstBuffer packet,
                     const PacketContext& context) const;

  Device& device_;
};

}  // namespace isthmus
