// The common part of devices whose codecs are passes on streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "codec/device_launcher.h"
#include "isthmus/device.h"

namespace isthmus {

// Makes codecs from the device's launcher, and counts from the words that its passes count in.
class GpuDevice : public Device {
 public:
  bool is_host() const override { return false; }
  int64_t squared_error_scratch_bytes() const override;
  std::unique_ptr<Codec> make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                    int ranks_per_node) override;
  DataType piece_dtype(DataType dtype) const override { return dtype; }
  DeviceCodecCounts codec_counts() override;
  // The device's words only ever grow: this does not interfere with encodings that are under way, or in a graph.
  void reset_codec_counts() override;

  virtual PassesOfDevice passes() = 0;
  // Memory of the host that the device reads and writes at the same address; zeros. Throws std::bad_alloc.
  virtual std::shared_ptr<std::byte> allocate_mapped(int64_t bytes) = 0;

 private:
  // The present counts of the device's codecs. Called by one thread at a time.
  virtual kernels::DeviceCounts read_counts() = 0;

  std::mutex counts_mutex_;  // guards what follows, and read_counts()
  kernels::DeviceCounts counts_at_reset_;
};

}  // namespace isthmus
