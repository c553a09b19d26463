// What reductions do for their units beside summing: residuals that leave with the codec, errors that are measured, and
// what is told of each unit.
#include "communicator/step.h"
#include "communicator/units/unit_table.h"
#include "isthmus/communicator.h"

namespace isthmus {

bool Communicator::has_residual(const Reduction& reduction) {
  return reduction.unit != nullptr && reduction.unit->has_residual();
}

void Communicator::encode_packet(Codec& codec, ConstBuffer values, Buffer residual, Buffer packet,
                                 const Reduction& reduction, const PacketContext& context, Workspace with) {
  ConstBuffer given;
  if (reduction.drains || reduction.measures) {
    given = in_float32(values, residual);
  }
  if (reduction.drains) {
    device_->clear(residual, here_);
    values = given;
    residual = {};
  }
  current_codec_ += codec.encode(values, residual, packet, context, with);
  if (reduction.measures) {
    measure_error(codec, given, packet, reduction, context);
  }
}

// values + residual. residual: empty, or as many elements.
Buffer Communicator::in_float32(ConstBuffer values, ConstBuffer residual) {
  const Buffer sum = take_scratch(values.num_elements, DataType::kFloat32);
  device_->convert(values, sum, here_);
  if (residual.num_elements > 0) {
    device_->add(residual, sum, here_);
  }
  return sum;
}

// Of the packet that was encoded last, by decoding it once more: nothing crosses for that.
void Communicator::measure_error(Codec& codec, ConstBuffer given, ConstBuffer packet, const Reduction& reduction,
                                 const PacketContext& context) {
  const Buffer decoded = take_scratch(given.num_elements, DataType::kFloat32);
  codec.decode_each(packet, 1, decoded, context, workspace(codec.decode_each_scratch_bytes(given.num_elements, 1)));
  device_->add_squared_error(given, decoded, reduction.unit->error, workspace(device_->squared_error_scratch_bytes()));
}

// Of the reduction that is done.
void Communicator::record_unit() {
  if (current_key_ == nullptr) {
    return;
  }
  const uint64_t hash = current_key_->hash();
  const auto found = unit_records_.find(hash);
  if (found == unit_records_.end() && static_cast<int64_t>(unit_records_.size()) >= options_.max_units) {
    return;
  }
  UnitRecord& record = unit_records_[hash];
  UnitStats& stats = record.stats;
  const UnitStats& current = current_unit_.stats;
  stats.name = current_key_->name;
  stats.collective = current_key_->collective;
  stats.num_elements = current_key_->num_elements;
  stats.codec = current.codec;
  stats.settings = current.settings;
  stats.reason = reason_of_codec();
  ++stats.calls;
  stats.coded_elements += current.coded_elements;
  stats.packet_bytes += current.packet_bytes;
  if (current_unit_.error != nullptr) {
    record.error = current_unit_.error;
  }
  add_to_choice();
}

}  // namespace isthmus
