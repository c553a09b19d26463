#include "communicator/units/unit.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "base/stable_hash.h"
#include "isthmus/error.h"

namespace isthmus {

Sections::Sections(const std::vector<Section>& sections) {
  StableHash hash;
  for (const Section& section : sections) {
    ISTHMUS_CHECK(
        Error, section.num_elements >= 0 && section.num_elements <= std::numeric_limits<int64_t>::max() - row_elements_,
        "parameter ", section.parameter, " has ", section.num_elements,
        " elements in a row: expected 0 or more, and no overflow");
    hash.add(section.parameter).add(section.num_elements);
    row_elements_ += section.num_elements;
  }
  hash_ = std::max<uint64_t>(hash.value() >> 1, 1);
}

uint64_t UnitKey::hash() const {
  return StableHash().add(num_elements).add(dtype).add(collective).add(layout).add(name).value();
}

UnitPtr make_unit(UnitKey key, std::optional<Reason> why_exact) {
  return std::make_shared<Unit>(std::move(key), why_exact);
}

int64_t num_elements_of(const Reduction& reduction, int num_ranks) {
  const UnitKey& key = reduction.unit->key;
  if (reduction.sections == nullptr) {
    return key.num_elements;
  }
  return reduction.sections->row_elements() * (key.collective == Collective::kReduceScatter ? num_ranks : 1);
}

void Residual::make(Device& device, const UnitKey& key, int64_t num_elements) {
  if (num_elements == 0) {
    return;
  }
  values = {nullptr, num_elements, DataType::kFloat32};
  try {
    memory = device.allocate(values.bytes());
  } catch (const std::bad_alloc&) {
    throw Error(detail::concatenate("unit \"", key.name, "\": no memory for a residual of ", values.bytes(), " bytes"));
  }
  values.data = memory.get();
  device.clear(values, device.lane(lane));
  if (magnitudes == nullptr) {
    constexpr int64_t kBytes = sizeof(Magnitudes);
    magnitudes = std::static_pointer_cast<Magnitudes>(device.allocate(kBytes));
    device.clear({magnitudes.get(), kBytes, DataType::kByte}, device.lane(lane));
  }
}

void Residual::copy_from(Device& device, const Residual& from) {
  if (from.values.num_elements == 0) {
    values = {};
    memory = nullptr;
    return;
  }
  if (values.num_elements != from.values.num_elements) {
    memory = device.allocate(from.values.bytes());
    values = {memory.get(), from.values.num_elements, from.values.dtype};
  }
  device.convert(from.values, values, device.lane(lane));
}

void Residual::multiply(Device& device, double factor) const {
  if (values.num_elements > 0) {
    device.multiply(values, factor, device.lane(lane));
  }
}

void Residuals::copy_from(Device& device, const Residuals& from) {
  scale = from.scale;
  pieces.copy_from(device, from.pieces);
  result.copy_from(device, from.result);
}

void Residuals::multiply(Device& device, double factor) const {
  pieces.multiply(device, factor);
  result.multiply(device, factor);
}

Unit::Unit(UnitKey key_, std::optional<Reason> why_exact_)
    : key(std::move(key_)), hash(key.hash()), why_exact(why_exact_) {}

Unit::~Unit() {  // NOLINT(bugprone-exception-escape): the types of its residuals were known when it got them
  if (memory != nullptr) {
    memory->num_units -= has_state ? 1 : 0;
    memory->residual_bytes -= residual_bytes();
    memory->dropped_residuals += counts_as_dropped && has_residual() ? 1 : 0;
  }
}

void Unit::set_context(Device& device, uint64_t hash_of_packets, uint64_t step_of_next) {
  packet_hash = hash_of_packets;
  step = step_of_next;
  for (int i = 0; contexts != nullptr && i < kNumPacketUses; ++i) {
    const auto use = static_cast<PacketUse>(i);
    device.set_contexts(contexts.get() + i, 1, context_of(packet_hash, step, use), device.lane(lane_of(use)));
  }
}

void Unit::follow_scale(Device& device, double new_scale) {
  if (scale != 0 && scale != new_scale) {
    pieces.multiply(device, scale / new_scale);
  }
  scale = new_scale;
}

void Unit::make_residuals(Device& device, int64_t pieces_elements, int64_t result_elements) {
  pieces.make(device, key, pieces_elements);
  result.make(device, key, result_elements);
  memory->residual_bytes += residual_bytes();
}

void Unit::drop_residuals() {
  memory->residual_bytes -= residual_bytes();
  for (Residual* const residual : {&pieces, &result}) {
    residual->values = {};
    residual->memory = nullptr;
  }
}

}  // namespace isthmus
