# What `cmake --install` puts into a prefix: headers, libraries, and the package that find_package(isthmus) finds there.
# docs/without_torch.md says how it is used.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(isthmus_components kernels core topology)
foreach(name mpi cuda nccl)
  if(TARGET isthmus_${name})
    list(APPEND isthmus_components ${name})
  endif()
endforeach()
foreach(name ${isthmus_components})
  set_target_properties(isthmus_${name} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS isthmus_${name} EXPORT isthmus INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/isthmus DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# Named as programs include them.
install(FILES ${PROJECT_SOURCE_DIR}/topology/machine.h ${PROJECT_SOURCE_DIR}/topology/read.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/topology)

set(isthmus_package ${CMAKE_INSTALL_LIBDIR}/cmake/isthmus)
install(EXPORT isthmus FILE isthmus-targets.cmake NAMESPACE isthmus:: DESTINATION ${isthmus_package})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/isthmus-config.cmake.in ${PROJECT_BINARY_DIR}/isthmus-config.cmake
                              INSTALL_DESTINATION ${isthmus_package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/isthmus-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/isthmus-config.cmake ${PROJECT_BINARY_DIR}/isthmus-config-version.cmake
        ${CMAKE_CURRENT_LIST_DIR}/FindIsthmusHwloc.cmake ${CMAKE_CURRENT_LIST_DIR}/FindIsthmusMpi.cmake
        ${CMAKE_CURRENT_LIST_DIR}/FindIsthmusNccl.cmake DESTINATION ${isthmus_package})
