# Finds the torch that the Python interpreter imports and defines the imported target isthmus_torch.
#
# Not find_package(Torch): that one takes seconds, enables the CUDA language, and fails without a CUDA toolkit where the
# wheel is a CUDA one. Results: IsthmusTorch_FOUND, IsthmusTorch_VERSION, IsthmusTorch_DIR, and IsthmusTorch_CUDA, the
# version of CUDA that torch is built with, or 0.
#
# Python runs with -I, which makes `pip install .` with build isolation see the torch of the environment that is being
# installed into, rather than the empty one that pip builds in.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)

execute_process(
  COMMAND ${Python_EXECUTABLE} -I -c
          "import importlib.util as u, pathlib; \
s = u.find_spec('torch'); \
p = pathlib.Path(s.origin).parent if s and s.origin else None; \
v = {}; p and exec((p / 'version.py').read_text(), v); \
print(f'{p};{v[\"__version__\"]};{v.get(\"cuda\") or 0}' if p else '', end='')"
  OUTPUT_VARIABLE torch_place
  ERROR_VARIABLE torch_error
  RESULT_VARIABLE torch_result)
if(NOT torch_result EQUAL 0 OR NOT torch_place)
  message(FATAL_ERROR "isthmus._C is built against the installed torch, and ${Python_EXECUTABLE} has none. "
                      "Install it first (pip install torch), or configure with -DISTHMUS_BUILD_PYTHON=OFF. ${torch_error}")
endif()
list(GET torch_place 0 IsthmusTorch_DIR)
list(GET torch_place 1 IsthmusTorch_VERSION)
list(GET torch_place 2 IsthmusTorch_CUDA)
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../pyproject.toml torch_supported REGEX "\"torch>=[0-9.]+,")
string(REGEX REPLACE ".*\"torch>=([0-9.]+),.*" "\\1" torch_oldest "${torch_supported}")
if(IsthmusTorch_VERSION VERSION_LESS torch_oldest)
  message(FATAL_ERROR "Isthmus needs torch ${torch_oldest} or newer; ${IsthmusTorch_DIR} is ${IsthmusTorch_VERSION}")
endif()

add_library(isthmus_torch INTERFACE IMPORTED)
target_include_directories(isthmus_torch SYSTEM INTERFACE ${IsthmusTorch_DIR}/include
                                                          ${IsthmusTorch_DIR}/include/torch/csrc/api/include)
foreach(name c10 torch_cpu torch torch_python)
  target_link_libraries(isthmus_torch INTERFACE ${IsthmusTorch_DIR}/lib/lib${name}.so)
endforeach()
target_link_libraries(isthmus_torch INTERFACE Python::Module)
# The wheels are built with libstdc++'s C++11 ABI since torch 2.6. USE_DISTRIBUTED and USE_C10D_GLOO guard c10d's headers.
target_compile_definitions(isthmus_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
set(IsthmusTorch_FOUND TRUE)
