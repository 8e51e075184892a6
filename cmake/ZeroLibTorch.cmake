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

function(_zero_python_torch python result)
  set(${result} "" PARENT_SCOPE)
  if(NOT python OR NOT EXISTS "${python}")
    return()
  endif()
  execute_process(
    COMMAND "${python}" -c
      "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')"
    OUTPUT_VARIABLE found ERROR_QUIET)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

set(_candidates "")
if(ZERO_TORCH_ROOT)
  list(APPEND _candidates "${ZERO_TORCH_ROOT}")
else()
  if(Torch_DIR)
    list(APPEND _candidates "${Torch_DIR}/../../..")
  endif()
  string(REPLACE ":" ";" _env_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  # torch.utils.cmake_prefix_path is <torch>/share/cmake.
  foreach(_prefix IN LISTS CMAKE_PREFIX_PATH _env_prefixes)
    list(APPEND _candidates "${_prefix}" "${_prefix}/../..")
  endforeach()
  if(DEFINED ENV{Torch_DIR})
    list(APPEND _candidates "$ENV{Torch_DIR}/../../..")
  endif()
  find_program(ZERO_ACTIVE_PYTHON python3)
  _zero_python_torch("${ZERO_ACTIVE_PYTHON}" _python_torch)
  _zero_python_torch("${CMAKE_CURRENT_LIST_DIR}/../.venv/bin/python" _venv_torch)
  list(APPEND _candidates ${_python_torch} ${_venv_torch})
endif()

set(_torch_root "")
foreach(_candidate IN LISTS _candidates)
  if(EXISTS "${_candidate}/include/ATen/ATen.h" AND EXISTS "${_candidate}/lib/libtorch_cpu.so")
    get_filename_component(_torch_root "${_candidate}" REALPATH)
    break()
  endif()
endforeach()
if(NOT _torch_root)
  message(FATAL_ERROR
    "LibTorch was not found. Run ./run build, which sets it up, or name one of\n"
    "  -DZERO_TORCH_ROOT=<folder with include/ and lib/>   -DTorch_DIR=<.../share/cmake/Torch>\n"
    "or activate a Python environment that has torch ${ZERO_TORCH_MINIMUM} or later.")
endif()

set(_torch_version "")
foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(EXISTS "${_torch_root}/include/${_header}" AND NOT _torch_version)
    file(STRINGS "${_torch_root}/include/${_header}" _lines
      REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
    list(JOIN _numbers "." _torch_version)
  endif()
endforeach()
if(NOT _torch_version OR _torch_version VERSION_LESS ZERO_TORCH_MINIMUM)
  message(FATAL_ERROR
    "LibTorch ${_torch_version} in ${_torch_root} is too old: ${ZERO_TORCH_MINIMUM} or later is "
    "needed (requirements.txt pins the version that the project is tested with).")
endif()
message(STATUS "LibTorch ${_torch_version} in ${_torch_root}")
# Kept, because CMake runs again by itself when a file is added, and not always in a shell with the
# environment of the first time.
set(ZERO_TORCH_ROOT "${_torch_root}" CACHE PATH "LibTorch: the folder with include/ and lib/" FORCE)
set(ZERO_TORCH_VERSION "${_torch_version}")
set(ZERO_TORCH_DIRECTORY "${_torch_root}")

# Imported, so that what is installed names it and carries no path of this machine.
add_library(Zero::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(Zero::torch INTERFACE
  "${_torch_root}/include" "${_torch_root}/include/torch/csrc/api/include")
target_link_libraries(Zero::torch INTERFACE
  "${_torch_root}/lib/libtorch_cpu.so" "${_torch_root}/lib/libc10.so" Threads::Threads)
# Parts of the wheel's libraries refer to others that a CPU program never calls.
target_link_options(Zero::torch INTERFACE
  "LINKER:--allow-shlib-undefined" "LINKER:-rpath,${_torch_root}/lib")
# The wheel ships its own fmt headers; header-only use cannot clash with a system libfmt.
target_compile_definitions(Zero::torch INTERFACE FMT_HEADER_ONLY=1)

if(EXISTS "${_torch_root}/lib/libtorch_cuda.so" AND EXISTS "${_torch_root}/lib/libc10_cuda.so")
  add_library(Zero::torch_cuda INTERFACE IMPORTED GLOBAL)
  target_link_libraries(Zero::torch_cuda INTERFACE
    "${_torch_root}/lib/libtorch_cuda.so" "${_torch_root}/lib/libc10_cuda.so" Zero::torch)
endif()
