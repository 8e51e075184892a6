# Installs the library into an empty folder, builds the examples against it and runs them on two ranks.
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

foreach(example my_training my_engine)
  run("${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${SOURCE}/examples/${example}" -B "${work}/${example}"
    -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DCMAKE_PREFIX_PATH=${work}/installed" "-DZERO_TORCH_ROOT=${TORCH}")
  run("${CMAKE_COMMAND}" --build "${work}/${example}")
endforeach()

# The engine: stopped after step 12 it goes on from the checkpoint of step 10, and ends where a run
# ends that was never stopped.
run("${work}/my_engine/my_engine" "${work}/at_once" 20)
string(REGEX MATCH "step 20 loss [^\n]+" at_once "${output}")
run("${work}/my_engine/my_engine" "${work}/in_two" 12)
run("${work}/my_engine/my_engine" "${work}/in_two" 20)
message("${output}")
string(REGEX MATCH "step 20 loss [^\n]+" in_two "${output}")
if(NOT output MATCHES "^step 11 " OR at_once STREQUAL "" OR NOT at_once STREQUAL in_two)
  message(FATAL_ERROR "at once it ended with '${at_once}', in two parts with '${in_two}'")
endif()

run("${work}/my_training/my_training")
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

# The documents show these programs and no others.
function(expect_shown example document)
  file(READ "${SOURCE}/${document}" shown)
  foreach(name ${example}.cpp CMakeLists.txt)
    file(READ "${SOURCE}/examples/${example}/${name}" text)
    string(FIND "${shown}" "${text}" found)
    if(found EQUAL -1)
      message(FATAL_ERROR "${document} does not show examples/${example}/${name} as it is")
    endif()
  endforeach()
endfunction()
expect_shown(my_training README.md)
expect_shown(my_engine docs/engine.md)
file(REMOVE_RECURSE "${work}")
