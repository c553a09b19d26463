// Encodes packets, updates the unit's residual, and fills in the packets' context.
#pragma once

#include <cstdint>

#include "communicator/run/run.h"
#include "communicator/units/reduction_plan.h"
#include "communicator/units/unit_table.h"
#include "isthmus/codec.h"

namespace isthmus {

// Has no state. The device outlives it.
class PacketCoder {
 public:
  explicit PacketCoder(Device& device) : device_(device) {}

  // The context of packets that are encoded or decoded now; their step is counted afterwards.
  // sender: the node that encodes the first of them: its place on the rail, which seeds the codec. It is no rank, since
  // copies of a parameter on other rails must get the same bits.
  PacketContext context_for(const ReductionPlan& plan, PacketUse use, int sender, uint8_t segment = 0) const;
  void count_packets(const Run& run, const ReductionPlan& plan, PacketUse use) const;

  // Codes a segment of the pieces, and of the shard, with scratch memory of the run: the same as encode() of each.
  // After the last segment the step is counted.
  void encode_pieces(Run& run, const ReductionPlan& plan, const PieceSet& set, PacketContext context,
                     bool is_last) const;
  void decode_shard(Run& run, const ReductionPlan& plan, const ShardSum& sum, PacketContext context,
                    bool is_last) const;

  // Encodes a segment of a piece, or of a result. residual: its part of the unit's, or empty. A plan that drains sends
  // the residual along exactly and leaves zeros; one that measures adds what the codec dropped to the unit's error.
  void encode(Run& run, const ReductionPlan& plan, Codec& codec, ConstBuffer values, Buffer residual, Buffer packet,
              const PacketContext& context, Workspace workspace) const;

 private:
  // Where a GPU reads the unit and step of these packets, and counts the steps. Null: nowhere, as for plans without a
  // unit.
  static DeviceContext* context_on_device(const ReductionPlan& plan, PacketUse use);
  Buffer in_float32(Run& run, ConstBuffer values, ConstBuffer residual) const;
  void measure_error(Run& run, const ReductionPlan& plan, Codec& codec, ConstBuffer given, ConstBuffer packet,
                     const PacketContext& context) const;

  Device& device_;
};

}  // namespace isthmus
