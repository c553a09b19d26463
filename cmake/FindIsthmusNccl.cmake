# Finds NCCL: with torch the one that torch loads, which is in a wheel beside it, else that of the CUDA toolkit or of the
# system. Results: IsthmusNccl_FOUND, IsthmusNccl_VERSION and the target isthmus_nccl_library.
#
# A wheel has libnccl.so.2, and no link to it without the number.
set(nccl_wheel)
if(IsthmusTorch_FOUND)
  set(nccl_wheel ${IsthmusTorch_DIR}/../nvidia/nccl)
endif()
find_path(IsthmusNccl_INCLUDE_DIR nccl.h HINTS ${nccl_wheel}/include ${CUDAToolkit_INCLUDE_DIRS})
find_library(IsthmusNccl_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${nccl_wheel}/lib ${CUDAToolkit_LIBRARY_DIR})
mark_as_advanced(IsthmusNccl_INCLUDE_DIR IsthmusNccl_LIBRARY)
if(IsthmusNccl_INCLUDE_DIR)
  file(STRINGS ${IsthmusNccl_INCLUDE_DIR}/nccl.h numbers REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" numbers "${numbers}")
  string(REPLACE ";" "." IsthmusNccl_VERSION "${numbers}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(IsthmusNccl REQUIRED_VARS IsthmusNccl_LIBRARY IsthmusNccl_INCLUDE_DIR
                                  VERSION_VAR IsthmusNccl_VERSION
                                  REASON_FAILURE_MESSAGE "Torch without Isthmus's half for CUDA: -DISTHMUS_BUILD_CUDA=OFF.")
if(IsthmusNccl_FOUND AND NOT TARGET isthmus_nccl_library)
  add_library(isthmus_nccl_library SHARED IMPORTED)
  set_target_properties(isthmus_nccl_library PROPERTIES IMPORTED_LOCATION ${IsthmusNccl_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${IsthmusNccl_INCLUDE_DIR})
endif()
