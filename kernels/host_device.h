// Marks functions that run on the CPU and, where CUDA compiles them, on the GPU too.
#pragma once

#ifdef __CUDACC__
#define ISTHMUS_DEVICE __host__ __device__ inline
#else
#define ISTHMUS_DEVICE inline
#endif
