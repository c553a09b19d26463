// A Device, and what Device leaves to those who use it: streams of their own, graphs, waiting. Tests are written
// against this, so that they run on a GPU and on an emulated one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "isthmus/device.h"
#include "tests/cpp/support/typed_data.h"

namespace isthmus::gpu {

using HostArray = test::Array;
using test::DeviceArray;
using test::first_difference;
using test::same_bytes;

class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual Device& device() = 0;
  // A stream of the caller's, for as long as this lives.
  virtual Stream make_stream() = 0;
  // The host waits for all that was enqueued.
  virtual void synchronize() = 0;
  // A graph of what `work` enqueues on `stream`, and on streams ordered after it that it joins again. Each call of the
  // result enqueues it once, on `stream`.
  virtual std::function<void()> capture(Stream stream, const std::function<void()>& work) = 0;
  // Memory that can be had, in bytes.
  virtual int64_t free_bytes() = 0;
};

// A fresh one each time: faults are sticky. The program has it: the first CUDA device, or an emulated GPU.
std::unique_ptr<Gpu> make_gpu();

}  // namespace isthmus::gpu
