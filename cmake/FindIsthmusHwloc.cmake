# Finds hwloc 2.1 or newer, which the library of machines reads them with. Results: IsthmusHwloc_FOUND,
# IsthmusHwloc_VERSION (of its interface) and the target isthmus_hwloc.
find_path(IsthmusHwloc_INCLUDE_DIR hwloc.h)
find_library(IsthmusHwloc_LIBRARY NAMES hwloc)
mark_as_advanced(IsthmusHwloc_INCLUDE_DIR IsthmusHwloc_LIBRARY)
if(IsthmusHwloc_INCLUDE_DIR)
  file(STRINGS ${IsthmusHwloc_INCLUDE_DIR}/hwloc.h number REGEX "#define HWLOC_API_VERSION ")
  string(REGEX REPLACE ".*0x(....)(..).*" "\\1;\\2" number "${number}")
  list(TRANSFORM number PREPEND "0x")
  foreach(part ${number})
    math(EXPR part "${part}")
    string(APPEND IsthmusHwloc_VERSION ".${part}")
  endforeach()
  string(SUBSTRING "${IsthmusHwloc_VERSION}" 1 -1 IsthmusHwloc_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(IsthmusHwloc REQUIRED_VARS IsthmusHwloc_LIBRARY IsthmusHwloc_INCLUDE_DIR
                                  VERSION_VAR IsthmusHwloc_VERSION)
if(IsthmusHwloc_FOUND AND NOT TARGET isthmus_hwloc)
  add_library(isthmus_hwloc INTERFACE IMPORTED)
  target_include_directories(isthmus_hwloc INTERFACE ${IsthmusHwloc_INCLUDE_DIR})
  target_link_libraries(isthmus_hwloc INTERFACE ${IsthmusHwloc_LIBRARY})
endif()
