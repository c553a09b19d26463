#include "unit_table.h"

#include <cstring>

namespace isthmus {
namespace {

// FNV-1a, 64 bits.
class Hasher {
 public:
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      state_ = (state_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
    }
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace

uint64_t UnitKey::hash() const {
  Hasher hasher;
  hasher.add(&num_elements, sizeof(num_elements));
  hasher.add(&dtype, sizeof(dtype));
  hasher.add(name.data(), name.size());
  return hasher.value();
}

Unit* UnitTable::find_or_add(const UnitKey& key, int64_t residual_elements) {
  const auto found = units_.find(key);
  if (found != units_.end()) {
    return &found->second;
  }
  if (size() >= max_units_) {
    return nullptr;
  }
  Unit unit;
  unit.hash = key.hash();
  unit.residual = {nullptr, residual_elements, DataType::kFloat32};
  if (residual_elements > 0) {
    unit.residual_memory = allocate_aligned(unit.residual.bytes());
    unit.residual.data = unit.residual_memory.get();
    std::memset(unit.residual.data, 0, static_cast<size_t>(unit.residual.bytes()));
  }
  residual_bytes_ += unit.residual.bytes();
  return &units_.emplace(key, std::move(unit)).first->second;
}

}  // namespace isthmus
