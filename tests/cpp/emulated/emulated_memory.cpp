#include "tests/cpp/emulated/emulated_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

namespace isthmus::test {
namespace {

constexpr int kPoison = 0xff;
constexpr int64_t kBytesBehind = 64;

std::shared_ptr<void> reserve_addresses(int64_t bytes) {
  const auto length = static_cast<size_t>(bytes) + 1;  // so that blocks never adjoin
  void* addresses = mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (addresses == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return {addresses, [length](void* begin) { munmap(begin, length); }};
}

}  // namespace

DeviceMemory EmulatedMemory::allocate(int64_t bytes) {
  Block block = {bytes, allocate_aligned(bytes + kBytesBehind), reserve_addresses(bytes)};
  std::memset(block.memory.get(), kPoison, static_cast<size_t>(bytes + kBytesBehind));
  void* address = block.addresses.get();
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  blocks_.emplace(begin, std::move(block));
  return {address, [self = shared_from_this(), begin](void*) {
            const std::lock_guard release_lock(self->mutex_);
            self->blocks_.at(begin).is_freed = true;
          }};
}

const EmulatedMemory::Block* EmulatedMemory::block_before(uintptr_t address, uintptr_t& begin) const {
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) {
    return nullptr;
  }
  const auto& [block_begin, block] = *std::prev(after);
  begin = block_begin;
  return &block;
}

void* EmulatedMemory::behind(const void* address) const {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  uintptr_t begin = 0;
  const Block* block = block_before(wanted, begin);
  const bool is_inside = block != nullptr && wanted - begin <= static_cast<uintptr_t>(block->bytes);
  return is_inside ? block->memory.get() + (wanted - begin) : nullptr;
}

std::string EmulatedMemory::objection(const MemoryUse& use) const {
  if (use.empty()) {
    return {};
  }
  const std::lock_guard lock(mutex_);
  uintptr_t begin = 0;
  const Block* block = block_before(use.begin, begin);
  if (block == nullptr || use.end > begin + static_cast<uintptr_t>(block->bytes)) {
    return "uses what is not, or not all, one block of this device's memory";
  }
  return block->is_freed ? "uses memory that was freed" : "";
}

bool EmulatedMemory::ends_are_intact() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(blocks_.begin(), blocks_.end(), [](const auto& block) {
    const std::byte* end = block.second.memory.get() + block.second.bytes;
    return std::all_of(end, end + kBytesBehind, [](std::byte byte) { return byte == std::byte{kPoison}; });
  });
}

void EmulatedMemory::poison_freed() {
  const std::lock_guard lock(mutex_);
  for (auto& [begin, block] : blocks_) {
    if (block.is_freed) {
      std::memset(block.memory.get(), kPoison, static_cast<size_t>(block.bytes));
    }
  }
}

}  // namespace isthmus::test
