# Finds the MPI that ISTHMUS_MPI names, and the mpiexec that belongs to it. Results: IsthmusMpi_FOUND,
# IsthmusMpi_DESCRIPTION, the target MPI::MPI_CXX and MPIEXEC_EXECUTABLE.
#
# Debian installs Open MPI and MPICH side by side and tells their commands apart by suffix.
set(MPI_CXX_SKIP_MPICXX ON)  # the C++ bindings of old, which MPI-3 dropped
if(NOT ISTHMUS_MPI STREQUAL "AUTO")
  set(MPI_CXX_COMPILER mpicxx.${ISTHMUS_MPI} CACHE STRING "Compiler wrapper of the MPI that ISTHMUS_MPI names")
  find_program(MPIEXEC_EXECUTABLE mpiexec.${ISTHMUS_MPI} REQUIRED)
endif()
find_package(MPI QUIET COMPONENTS CXX)
set(IsthmusMpi_FOUND ${MPI_CXX_FOUND})
if(MPI_CXX_FOUND)
  set(IsthmusMpi_DESCRIPTION "${MPI_CXX_VERSION}, started by ${MPIEXEC_EXECUTABLE}")
elseif(IsthmusMpi_FIND_REQUIRED)
  message(FATAL_ERROR "ISTHMUS_MPI=${ISTHMUS_MPI}: mpicxx.${ISTHMUS_MPI} was not found or does not work")
endif()

# A test that is an mpiexec of `num_ranks` processes of `program`; if that is a target, mpi_tests builds it. The environment stands for the options that Open MPI and MPICH
# spell differently or lack: as root, more ranks than cores, none bound to a core.
function(isthmus_add_mpi_test name num_ranks program)
  if(NOT TARGET mpi_tests)
    add_custom_target(mpi_tests)
  endif()
  if(TARGET ${program})
    add_dependencies(mpi_tests ${program})
    set(program $<TARGET_FILE:${program}>)
  endif()
  add_test(NAME mpi.${name}
           COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${num_ranks} ${program} ${ARGN})
  set_tests_properties(mpi.${name} PROPERTIES LABELS mpi TIMEOUT ${isthmus_hang_s} PROCESSORS 2)
  set_tests_properties(mpi.${name} PROPERTIES ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;\
OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_hwloc_base_binding_policy=none")
endfunction()
