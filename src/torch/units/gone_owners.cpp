#include "torch/units/gone_owners.h"

#include <atomic>
#include <vector>

namespace isthmus::torch_backend {
namespace {

// Owners in the order in which they went. Never destroyed: Python may collect objects after static objects are gone.
struct Gone {
  std::mutex mutex;
  std::vector<uint64_t> owners;
  std::atomic<size_t> size = 0;
};
Gone& gone() {
  static auto* list = new Gone;
  return *list;
}

}  // namespace

void forget_owner(uint64_t owner) {
  const std::lock_guard lock(gone().mutex);
  gone().owners.push_back(owner);
  ++gone().size;
}

std::set<uint64_t> GoneOwners::take() {
  std::set<uint64_t> owners;
  const std::lock_guard lock(mutex_);
  if (seen_ == gone().size) {
    return owners;
  }
  const std::lock_guard gone_lock(gone().mutex);
  for (; seen_ < gone().owners.size(); ++seen_) {
    owners.insert(gone().owners[seen_]);
  }
  return owners;
}

}  // namespace isthmus::torch_backend
