// Differences of weights on a GPU: enqueues their passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "codec/device_codecs.h"
#include "codec/weights/device.h"

namespace isthmus {

class WeightCoder {
 public:
  // Memory of the host that the device reads and writes at the same address; zeros. Throws std::bad_alloc.
  using AllocateMapped = std::function<std::shared_ptr<std::byte>(int64_t bytes)>;

  // The launcher outlives it.
  WeightCoder(DeviceLauncher& launcher, AllocateMapped allocate_mapped);

  // Both throw Error for wrong types, sizes and alignments. Work that follows a decoding on its stream waits for the
  // host where packets do not do.
  void encode(const WeightEncode& encode, Stream stream);
  void decode(const WeightDecode& decode, Stream stream);

  std::shared_ptr<std::byte> allocate_mapped(int64_t bytes) const { return allocate_mapped_(bytes); }

 private:
  DeviceLauncher& launcher_;
  const AllocateMapped allocate_mapped_;
};

}  // namespace isthmus
