# The CUDA language, for the three architectures that packets are bit-equal on, and how everything in it is compiled.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90 100)
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
  message(FATAL_ERROR "Isthmus needs CUDA 12.8 or newer; ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
find_package(CUDAToolkit REQUIRED)

# CMake 3.25 does not know that nvcc has C++20, which is asked for because CMAKE_CXX_STANDARD is 20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()

# No contraction into FMA and no flush to zero, as on the CPU. -Wall for what nvcc hands to the host compiler.
set(isthmus_cuda_options --fmad=false --ftz=false --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-ffp-contract=off)
if(ISTHMUS_WERROR)
  list(APPEND isthmus_cuda_options --Werror=all-warnings)
endif()
