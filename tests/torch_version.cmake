# cmake/ZeroLibTorch.cmake takes LibTorch from 2.11 on and refuses what is older, and what does not
# say its version, with a message that names version, folder and what would be right. Folders with
# only a version header stand for LibTorch.
#   cmake -DSOURCE=<project> -DWORK=<folder> -P torch_version.cmake
set(new_place torch/headeronly/version.h)
set(old_place torch/csrc/api/include/torch/version.h)

# Makes a folder that looks like LibTorch, and expects the text in what the module says of it.
function(expect version header text)
  set(root "${WORK}/torch_version/torch")
  file(REMOVE_RECURSE "${WORK}/torch_version")
  file(WRITE "${root}/include/ATen/ATen.h" "")
  file(WRITE "${root}/lib/libtorch_cpu.so" "")
  if(version MATCHES "^([0-9]+)\\.([0-9]+)\\.([0-9]+)$")
    file(WRITE "${root}/include/${header}" "#define TORCH_VERSION_MAJOR ${CMAKE_MATCH_1}\n"
      "#define TORCH_VERSION_MINOR ${CMAKE_MATCH_2}\n#define TORCH_VERSION_PATCH ${CMAKE_MATCH_3}\n"
      "#define TORCH_VERSION \"${version}\"\n")
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" "-DZERO_TORCH_ROOT=${root}"
    -P "${SOURCE}/cmake/ZeroLibTorch.cmake" OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  string(FIND "${output}" "${text}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "LibTorch '${version}' (${header}): expected '${text}', got: ${output}")
  endif()
endfunction()

foreach(header ${new_place} ${old_place})
  foreach(version 1.13.1 2.2.0 2.10.9)
    expect(${version} ${header} "LibTorch ${version} in ${WORK}/torch_version/torch is too old: 2.11 or later is needed")
  endforeach()
  # In script mode nothing but targets is missing after this line.
  foreach(version 2.11.0 2.15.0 3.0.0)
    expect(${version} ${header} "LibTorch ${version} in ${WORK}/torch_version/torch")
    expect(${version} ${header} "add_library command is not scriptable")
  endforeach()
endforeach()
expect("" ${new_place} "is too old: 2.11 or later is needed")
file(REMOVE_RECURSE "${WORK}/torch_version")
