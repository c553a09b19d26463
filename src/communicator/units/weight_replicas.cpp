#include "communicator/units/weight_replicas.h"

#include <new>

#include "isthmus/error.h"

namespace isthmus {

std::shared_ptr<Replica> WeightReplicas::find_or_add(const UnitKey& key, int64_t num_elements) {
  const auto found = replicas_.find(key);
  if (found != replicas_.end()) {
    return found->second;
  }
  if (static_cast<int64_t>(replicas_.size()) >= max_units_) {
    return nullptr;
  }
  auto replica = std::make_shared<Replica>();
  replica->hash = key.hash();
  replica->shards = {nullptr, num_elements, key.dtype};
  const int64_t bytes = replica->words().bytes();
  try {
    replica->memory = device_.allocate(bytes);
  } catch (const std::bad_alloc&) {
    throw Error(detail::concatenate("unit \"", key.name, "\": no memory for a replica of its rail's weights, ", bytes,
                                    " bytes, beside ", bytes_, " bytes of other units (weights=delta)"));
  }
  replica->shards.data = replica->memory.get();
  device_.clear({replica->shards.data, bytes, DataType::kByte}, device_.lane(Lane::kEncodeWeights));
  bytes_ += bytes;
  return replicas_.emplace(key, std::move(replica)).first->second;
}

void WeightReplicas::drop(const std::string& name) {
  std::erase_if(replicas_, [&](const auto& entry) {
    const bool is_gone = entry.first.name == name;
    bytes_ -= is_gone ? entry.second->words().bytes() : 0;
    return is_gone;
  });
}

}  // namespace isthmus
