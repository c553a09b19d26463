// Kernels of other libraries: known by name, never run. And the functions that torch asks the driver for.
#include <cxxabi.h>
#include <dlfcn.h>

#include <mutex>
#include <unordered_map>

#include "fake_runtime.h"

namespace isthmus::fake_gpu {
namespace {

struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void*, const char*> names;
};

Kernels& kernels() {
  static auto* const instance = new Kernels;
  return *instance;
}

[[noreturn]] void refuse_kernel(const void* function) {
  const std::lock_guard lock(kernels().mutex);
  const auto found = kernels().names.find(function);
  const char* name = found == kernels().names.end() ? "an unknown one" : found->second;
  const char* readable = abi::__cxa_demangle(name, nullptr, nullptr, nullptr);
  give_up("cannot run a CUDA kernel: %s", readable == nullptr ? name : readable);
}

}  // namespace
}  // namespace isthmus::fake_gpu

using namespace isthmus::fake_gpu;

FAKE_API void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
FAKE_API void __cudaRegisterFatBinaryEnd(void**) {}
FAKE_API void __cudaUnregisterFatBinary(void**) {}
FAKE_API char __cudaInitModule(void**) { return 1; }
FAKE_API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
FAKE_API void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*,
                                     dim3*, int*) {
  const std::lock_guard lock(kernels().mutex);
  kernels().names.emplace(function, name);
}
FAKE_API unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) { return 0; }
FAKE_API cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaSuccess; }
FAKE_API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
FAKE_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  refuse_kernel(kernel);
}
FAKE_API cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  refuse_kernel(function);
}
FAKE_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) {
  refuse_kernel(function);
}
FAKE_API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  refuse_kernel(function);
}

// --- the driver. cuda.h is left out: torch asks for these functions by name, and only whether they are there.

FAKE_API int cuGetErrorString(int, const char** text) {
  *text = "the fake GPU has no driver";
  return 0;
}
FAKE_API int cuptiGetResultString(int, const char** text) {
  *text = "the fake GPU has no CUPTI";
  return 0;
}

FAKE_API int fake_gpu_no_such_function() { return cudaErrorNotSupported; }

FAKE_API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int,
                                                      unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (*function == nullptr) {
    *function = reinterpret_cast<void*>(fake_gpu_no_such_function);
  }
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// --- names of errors

FAKE_API const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaError of the fake GPU";
}
FAKE_API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorNotSupported:
      return "the fake GPU does not support this";
    default:
      return "an error of the fake GPU";
  }
}
