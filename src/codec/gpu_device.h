// What devices share whose codecs run as passes on streams.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "codec/device_launcher.h"
#include "isthmus/device.h"

namespace isthmus {

// Makes codecs from the device's launcher, and reads the counts that passes write.
class GpuDevice : public Device {
 public:
  bool is_host() const override { return false; }
  int64_t squared_error_scratch_bytes() const override;
  std::unique_ptr<Codec> make_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                    int ranks_per_node) override;
  DataType piece_dtype(DataType dtype) const override { return dtype; }
  DeviceCodecCounts codec_counts() override;
  // Subtracts the present counts from later ones. The device's words only grow, so encodings under way, or in a graph,
  // are not disturbed.
  void reset_codec_counts() override;

  virtual PassesOfDevice passes() = 0;

 private:
  // The present counts of the device's codecs. One thread at a time calls it.
  virtual kernels::DeviceCounts read_counts() = 0;

  std::mutex counts_mutex_;  // guards what follows, and read_counts()
  kernels::DeviceCounts counts_at_reset_;
};

}  // namespace isthmus
