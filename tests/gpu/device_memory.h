// Memory of the GPU, for checks: copied in and out as vectors. Every call waits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "isthmus/buffer.h"

namespace isthmus::gpu {

inline void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
  }
}

// Filled with 0xa5 at first.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, static_cast<size_t>(bytes > 0 ? bytes : 1)), "cudaMalloc");
    check(cudaMemset(data_, 0xa5, static_cast<size_t>(bytes)), "cudaMemset");
  }
  template <typename T>
  explicit DeviceMemory(const std::vector<T>& values) : DeviceMemory(static_cast<int64_t>(sizeof(T) * values.size())) {
    check(cudaMemcpy(data_, values.data(), sizeof(T) * values.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  Buffer bytes() const { return {data_, bytes_, DataType::kByte}; }
  Buffer floats() const { return {data_, bytes_ / 4, DataType::kFloat32}; }

  template <typename T>
  std::vector<T> copy() const {
    std::vector<T> values(static_cast<size_t>(bytes_) / sizeof(T));
    check(cudaMemcpy(values.data(), data_, sizeof(T) * values.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_;
};

}  // namespace isthmus::gpu
