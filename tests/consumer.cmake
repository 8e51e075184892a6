# Installs the library into an empty folder, builds the example against it and runs it on two ranks.
set(work "${BUILD}/consumer")
file(REMOVE_RECURSE "${work}")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "failed (${code}): ${ARGN}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${work}/installed")
# What is installed must work where neither the sources nor the build are.
file(GLOB_RECURSE files "${work}/installed/*.cmake" "${work}/installed/*.hpp")
foreach(file IN LISTS files)
  file(READ "${file}" text)
  foreach(path "${SOURCE}" "${BUILD}")
    string(FIND "${text}" "${path}" found)
    if(NOT found EQUAL -1)
      message(FATAL_ERROR "${file} names ${path}")
    endif()
  endforeach()
endforeach()

run("${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${SOURCE}/examples/my_training" -B "${work}/build"
  -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${work}/installed"
  "-DZERO_TORCH_ROOT=${TORCH}")
run("${CMAKE_COMMAND}" --build "${work}/build")
run("${work}/build/my_training")
message("${output}")

# It trains: the last loss is below the first; and each of two ranks holds half of 4 V.
string(REGEX MATCHALL "loss [0-9.]+" losses "${output}")
list(LENGTH losses steps)
list(GET losses 0 first)
list(GET losses -1 last)
string(REPLACE "loss " "" first "${first}")
string(REPLACE "loss " "" last "${last}")
if(NOT steps EQUAL 20 OR NOT last LESS first)
  message(FATAL_ERROR "20 steps whose loss falls were expected")
endif()
string(REGEX MATCHALL "holds [0-9]+ KiB" held "${output}")
list(LENGTH held ranks)
if(NOT ranks EQUAL 2)
  message(FATAL_ERROR "two ranks should have reported")
endif()

# The README shows this program and no other.
file(READ "${SOURCE}/README.md" readme)
foreach(name my_training.cpp CMakeLists.txt)
  file(READ "${SOURCE}/examples/my_training/${name}" text)
  string(FIND "${readme}" "${text}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "README.md does not show examples/my_training/${name} as it is")
  endif()
endforeach()
file(REMOVE_RECURSE "${work}")
