# Finds LibTorch and makes the imported target Zero::torch (CPU libraries only) and, where this
# LibTorch has CUDA, Zero::torch_cuda.
#
# A CUDA build of LibTorch cannot be used through find_package(Torch) on a machine without a CUDA
# toolkit, so the target is made from the library files themselves: libtorch_cpu and libc10 are
# enough for everything but the NCCL backend.
#
# Looked for in this order:
#   1. -DZERO_TORCH_ROOT=<folder with include/ and lib/>
#   2. Torch_DIR, CMAKE_PREFIX_PATH
#   3. the torch package of the active Python
#   4. the .venv that ./run makes
set(ZERO_TORCH_MINIMUM 2.11)

set(_candidates "${ZERO_TORCH_ROOT}")
if(NOT ZERO_TORCH_ROOT)
  foreach(_folder IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(_folder)
      list(APPEND _candidates "${_folder}/../../..")
    endif()
  endforeach()
  string(REPLACE ":" ";" _prefixes "$ENV{CMAKE_PREFIX_PATH}")
  # torch.utils.cmake_prefix_path is <torch>/share/cmake.
  foreach(_prefix IN LISTS CMAKE_PREFIX_PATH _prefixes)
    list(APPEND _candidates "${_prefix}" "${_prefix}/../..")
  endforeach()
  foreach(_python python3 "${CMAKE_CURRENT_LIST_DIR}/../.venv/bin/python")
    execute_process(COMMAND "${_python}" -c
      "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0], end='')"
      OUTPUT_VARIABLE _found ERROR_QUIET)
    list(APPEND _candidates ${_found})
  endforeach()
endif()
set(ZERO_TORCH_DIRECTORY "")
foreach(_candidate IN LISTS _candidates)
  if(EXISTS "${_candidate}/include/ATen/ATen.h" AND EXISTS "${_candidate}/lib/libtorch_cpu.so")
    get_filename_component(ZERO_TORCH_DIRECTORY "${_candidate}" REALPATH)
    break()
  endif()
endforeach()
if(NOT ZERO_TORCH_DIRECTORY)
  message(FATAL_ERROR
    "LibTorch was not found. In zero's own folder, ./run build sets it up. Elsewhere name the one that zero was "
    "built with, often <zero>/.venv/lib/python3.*/site-packages/torch, by one of\n"
    "  -DZERO_TORCH_ROOT=<folder with include/ and lib/>   -DTorch_DIR=<.../share/cmake/Torch>\n"
    "or activate a Python environment that has torch ${ZERO_TORCH_MINIMUM} or later.")
endif()

set(ZERO_TORCH_VERSION "")
foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(EXISTS "${ZERO_TORCH_DIRECTORY}/include/${_header}" AND NOT ZERO_TORCH_VERSION)
    file(STRINGS "${ZERO_TORCH_DIRECTORY}/include/${_header}" _lines
      REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
    list(JOIN _numbers "." ZERO_TORCH_VERSION)
  endif()
endforeach()
if(NOT ZERO_TORCH_VERSION OR ZERO_TORCH_VERSION VERSION_LESS ZERO_TORCH_MINIMUM)
  message(FATAL_ERROR
    "LibTorch ${ZERO_TORCH_VERSION} in ${ZERO_TORCH_DIRECTORY} is too old: ${ZERO_TORCH_MINIMUM} or later is "
    "needed (requirements.txt pins the version that the project is tested with).")
endif()
message(STATUS "LibTorch ${ZERO_TORCH_VERSION} in ${ZERO_TORCH_DIRECTORY}")
# Kept, because CMake runs again by itself when a file is added, and not always in a shell with the
# environment of the first time.
set(ZERO_TORCH_ROOT "${ZERO_TORCH_DIRECTORY}" CACHE PATH "LibTorch: the folder with include/ and lib/" FORCE)

# Imported, so that what is installed names it and carries no path of this machine.
add_library(Zero::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(Zero::torch INTERFACE
  "${ZERO_TORCH_DIRECTORY}/include" "${ZERO_TORCH_DIRECTORY}/include/torch/csrc/api/include")
target_link_libraries(Zero::torch INTERFACE
  "${ZERO_TORCH_DIRECTORY}/lib/libtorch_cpu.so" "${ZERO_TORCH_DIRECTORY}/lib/libc10.so" Threads::Threads)
# Parts of the wheel's libraries refer to others that a CPU program never calls.
target_link_options(Zero::torch INTERFACE
  "LINKER:--allow-shlib-undefined" "LINKER:-rpath,${ZERO_TORCH_DIRECTORY}/lib")

if(EXISTS "${ZERO_TORCH_DIRECTORY}/lib/libtorch_cuda.so" AND EXISTS "${ZERO_TORCH_DIRECTORY}/lib/libc10_cuda.so")
  add_library(Zero::torch_cuda INTERFACE IMPORTED GLOBAL)
  target_link_libraries(Zero::torch_cuda INTERFACE
    "${ZERO_TORCH_DIRECTORY}/lib/libtorch_cuda.so" "${ZERO_TORCH_DIRECTORY}/lib/libc10_cuda.so" Zero::torch)
endif()
