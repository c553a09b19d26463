// Marks functions that run on the CPU and, where CUDA compiles them, on the GPU too; and loops whose loads the GPU
// should have in flight together, or whose code it should have once.
#pragma once

#ifdef __CUDACC__
#define ISTHMUS_DEVICE __host__ __device__ inline
#else
#define ISTHMUS_DEVICE inline
#endif

#ifdef __CUDA_ARCH__
#define ISTHMUS_UNROLL _Pragma("unroll")
#define ISTHMUS_UNROLL_8 _Pragma("unroll 8")
#define ISTHMUS_DO_NOT_UNROLL _Pragma("unroll 1")
#else
#define ISTHMUS_UNROLL
#define ISTHMUS_UNROLL_8
#define ISTHMUS_DO_NOT_UNROLL
#endif
