# Whether the library zero_cuda (ranks on GPUs over NCCL) is built: where LibTorch has CUDA and the
# headers of CUDA and NCCL are there. Sets ZERO_CUDA_FOUND and ZERO_CUDA_INCLUDES.
#
# No compiler of CUDA's is needed: what runs on the GPU is LibTorch's. LibTorch's wheel from PyPI
# brings the headers as packages of their own, beside it in nvidia/; a CUDA toolkit has most of them
# too, so the wheel's are looked for first, because their versions fit. Headers of CUDA include <nv/target>, of a
# package of its own (nvidia-cuda-cccl) that not every wheel requires.
set(ZERO_CUDA AUTO CACHE STRING "Build zero_cuda, ranks on GPUs over NCCL: AUTO, ON or OFF")
set_property(CACHE ZERO_CUDA PROPERTY STRINGS AUTO ON OFF)

set(ZERO_CUDA_FOUND FALSE)
set(ZERO_CUDA_INCLUDES "")
set(_cuda_missing "")
if(NOT ZERO_CUDA)
  return()
elseif(NOT TARGET Zero::torch_cuda)
  set(_cuda_missing " a LibTorch that was built with CUDA")
else()
  file(GLOB _cuda_hints "${ZERO_TORCH_DIRECTORY}/../nvidia/*/include")
  foreach(_header cuda_runtime_api.h cublas_v2.h cublasLt.h cusparse.h cusolverDn.h nccl.h nv/target)
    find_path(ZERO_DIRECTORY_OF_${_header} ${_header}
      HINTS ${_cuda_hints} ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include cccl include/cccl)
    mark_as_advanced(ZERO_DIRECTORY_OF_${_header})
    list(APPEND ZERO_CUDA_INCLUDES "${ZERO_DIRECTORY_OF_${_header}}")
    if(NOT ZERO_DIRECTORY_OF_${_header})
      string(APPEND _cuda_missing " ${_header}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES ZERO_CUDA_INCLUDES)
  # A folder of the system's must stay behind the compiler's own.
  list(REMOVE_ITEM ZERO_CUDA_INCLUDES /usr/include)
endif()

if(NOT _cuda_missing)
  set(ZERO_CUDA_FOUND TRUE)
  message(STATUS "CUDA and NCCL: ${ZERO_CUDA_INCLUDES}")
elseif(ZERO_CUDA STREQUAL "AUTO")
  message(STATUS "CUDA and NCCL: zero_cuda is not built (not found:${_cuda_missing})")
else()
  message(FATAL_ERROR "ZERO_CUDA is ON, but not found:${_cuda_missing}. Use a LibTorch with CUDA and name the "
    "folders of the missing headers in CMAKE_INCLUDE_PATH, or leave ZERO_CUDA at AUTO.")
endif()
