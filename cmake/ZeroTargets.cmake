# Helpers that declare the project's libraries, chapters and tests.
# One precompiled header, built once and shared by every target (see docs/decisions.md).
# GCC uses it only under exactly the flags that it was made with, warnings included.
set(ZERO_WARNINGS -Wall -Wextra -Wpedantic -Wno-unused-parameter)
add_library(zero_pch OBJECT cmake/pch.cpp)
target_link_libraries(zero_pch PUBLIC Zero::torch)
target_compile_options(zero_pch PRIVATE ${ZERO_WARNINGS})
target_precompile_headers(zero_pch PRIVATE cmake/pch.hpp)

# Tests have one of their own, with GoogleTest, and are optimised less than what they test: that takes
# a third off their compilation and costs them nothing.
if(ZERO_BUILD_TESTS)
  set(ZERO_TEST_OPTIONS "$<$<CONFIG:Release>:-O1>")
  add_library(zero_test_pch OBJECT cmake/pch.cpp)
  target_link_libraries(zero_test_pch PUBLIC Zero::torch GTest::gmock)
  target_compile_options(zero_test_pch PRIVATE ${ZERO_WARNINGS} ${ZERO_TEST_OPTIONS})
  target_precompile_headers(zero_test_pch PRIVATE cmake/pch.hpp <gmock/gmock.h> <gtest/gtest.h>)
endif()

function(zero_configure_test target)
  target_compile_options(${target} PRIVATE ${ZERO_WARNINGS} ${ZERO_TEST_OPTIONS})
  target_precompile_headers(${target} REUSE_FROM zero_test_pch)
endfunction()

function(zero_configure_target target)
  target_compile_options(${target} PRIVATE ${ZERO_WARNINGS})
  target_precompile_headers(${target} REUSE_FROM zero_pch)
endfunction()

# zero_configure_program(<target> <library>...): the same for a program, which goes to <build>/bin.
function(zero_configure_program target)
  zero_configure_target(${target})
  target_link_libraries(${target} PRIVATE ${ARGN})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
endfunction()

# zero_compile_in_batches(<target> [<files>]): compiles the sources of a target in batches of five files, or
# of as many as are given: one source includes the others one after the other. GCC instantiates for every
# object the templates that the precompiled header left open, which takes longer than most files, so this
# halves the time of a whole build. -DZERO_BATCHES=OFF for one object a file. A name in an unnamed namespace
# is then seen by the files after it: it may have to be told apart. Lessons are not compiled like this.
option(ZERO_BATCHES "Compile the common library and the tests in batches of files" ON)
function(zero_compile_in_batches target)
  set(files 5)
  if(ARGN)
    set(files ${ARGN})
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${ZERO_BATCHES} UNITY_BUILD_BATCH_SIZE ${files})
endfunction()

# zero_discover_tests(<program> [FILTER <GoogleTest filter>] [PREFIX <text>] [TIMEOUT <seconds>]
#                     LABELS <labels> [ENVIRONMENT <NAME=value>...] [PROPERTIES <name> <value>...]
#                     [TOGETHER])
# Every suite of a GoogleTest program (of those tests that the filter lets through) becomes one test of
# ctest, or all of them one. A program may be given several times, for several filters or environments.
function(zero_discover_tests program)
  cmake_parse_arguments(ARG "TOGETHER" "FILTER;PREFIX;TIMEOUT" "LABELS;ENVIRONMENT;PROPERTIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set(environment "ZERO_PYTHON=${ZERO_PYTHON}" OMP_NUM_THREADS=1 ${ARG_ENVIRONMENT})
  set(properties "TIMEOUT ${ARG_TIMEOUT} LABELS [==[${ARG_LABELS}]==] ENVIRONMENT [==[${environment}]==]")
  foreach(word IN LISTS ARG_PROPERTIES)
    string(APPEND properties " [==[${word}]==]")
  endforeach()
  get_property(lists TARGET ${program} PROPERTY ZERO_TEST_LISTS)
  list(LENGTH lists number)
  set(file "${CMAKE_CURRENT_BINARY_DIR}/${program}_${number}.cmake")
  set_property(TARGET ${program} APPEND PROPERTY ZERO_TEST_LISTS "${file}")
  add_custom_command(TARGET ${program} POST_BUILD BYPRODUCTS "${file}"
    COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:${program}>" "-DFILTER=${ARG_FILTER}"
      "-DPREFIX=${ARG_PREFIX}" "-DTOGETHER=${ARG_TOGETHER}" "-DFOLDER=${PROJECT_SOURCE_DIR}" "-DPROPERTIES=${properties}"
      "-DOUTPUT=${file}" -P "${PROJECT_SOURCE_DIR}/cmake/ZeroDiscoverTests.cmake" VERBATIM)
  # Read by ctest. Where the program was not built, ctest says so in place of its tests.
  set(include "${CMAKE_CURRENT_BINARY_DIR}/${program}_${number}_include.cmake")
  file(CONFIGURE OUTPUT "${include}" CONTENT "if(EXISTS [==[@file@]==])
  include([==[@file@]==])
else()
  add_test([==[@program@_NOT_BUILT]==] @program@_NOT_BUILT)
endif()
" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include}")
endfunction()

# zero_add_tests(<program> SOURCES <files> LABELS <labels> [LIBRARIES <targets>] [TIMEOUT <seconds>]
#                [TEST_FILTER <GoogleTest filter>] [TOGETHER])
# One GoogleTest program; every suite (of what the filter lets through) becomes one test of ctest under
# the given labels, or with TOGETHER all of them one: for programs that fork no ranks and whose tests are
# quick, because to start a program with LibTorch takes half a second.
function(zero_add_tests program)
  cmake_parse_arguments(ARG "TOGETHER" "TIMEOUT;TEST_FILTER" "SOURCES;LABELS;LIBRARIES" ${ARGN})
  if(NOT ZERO_BUILD_TESTS OR NOT ARG_SOURCES)
    return()
  endif()
  add_executable(${program} ${ARG_SOURCES})
  zero_configure_test(${program})
  zero_compile_in_batches(${program})
  target_link_libraries(${program} PRIVATE zero_test_support ${ARG_LIBRARIES})
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  set(together "")
  if(ARG_TOGETHER)
    set(together TOGETHER)
  endif()
  zero_discover_tests(${program} FILTER "${ARG_TEST_FILTER}" TIMEOUT "${ARG_TIMEOUT}"
    LABELS ${ARG_LABELS} ${together})
endfunction()

# zero_add_benchmark(<program> SOURCES <files> [LIBRARIES <targets>] SMOKE_TEST <name>
#                    [LABELS <labels>])
# A program of benchmarks. Its smoke test, Smoke.<name> in tests/bench/smoke_test.cpp, runs it as
# briefly as it can be run and looks at what it wrote. With LABELS that is test bench.<program> of
# ctest, and the program is built with the tests. Without, as for programs that take long to compile,
# it is a part of target check_benchmarks only.
function(zero_add_benchmark program)
  cmake_parse_arguments(ARG "" "SMOKE_TEST" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${program} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  zero_configure_target(${program})
  target_link_libraries(${program} PRIVATE ${ARG_LIBRARIES} zero_bench)
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  set_property(GLOBAL APPEND PROPERTY ZERO_BENCHMARKS ${program})
  if(NOT ZERO_BUILD_TESTS)
    return()
  endif()
  set(program_to_test "ZERO_BENCH_PROGRAM=$<TARGET_FILE:${program}>")
  set_property(GLOBAL APPEND PROPERTY ZERO_SMOKE_TESTS COMMAND "${CMAKE_COMMAND}" -E env
    "${program_to_test}" OMP_NUM_THREADS=1 $<TARGET_FILE:bench_smoke_test>
    "--gtest_filter=Smoke.${ARG_SMOKE_TEST}")
  if(ARG_LABELS)
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL FALSE)
    add_test(NAME bench.${program} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
      COMMAND bench_smoke_test "--gtest_filter=Smoke.${ARG_SMOKE_TEST}")
    set_tests_properties(bench.${program} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 120
      ENVIRONMENT "${program_to_test};OMP_NUM_THREADS=1")
  endif()
endfunction()

# Target benchmarks: all of them, and the program that puts their results together. Target
# check_benchmarks: the smoke tests of all of them, and the tests of what they share.
function(zero_add_benchmarks_target)
  get_property(programs GLOBAL PROPERTY ZERO_BENCHMARKS)
  add_custom_target(benchmarks DEPENDS ${programs} bench_report)
  if(ZERO_BUILD_TESTS)
    get_property(smoke_tests GLOBAL PROPERTY ZERO_SMOKE_TESTS)
    add_custom_target(check_benchmarks COMMAND bench_test ${smoke_tests}
      DEPENDS benchmarks bench_test bench_smoke_test
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" USES_TERMINAL VERBATIM)
  endif()
endfunction()

# zero_add_chapter(<NN_name> MODE <strategy> [NARRATED_WIDTH <n>] [LIBRARIES <targets>] [PROGRAMS <names>]):
# the folder's *.cpp files except tests, benchmarks and the PROGRAMS become the library zero_<NN_name>;
# tools/step/main.cpp becomes the program <NN_name>, which trains under <strategy>; *_test.cpp the program
# <name>_test with label <NN_name>; *_bench.cpp the program <name>_bench; target check_<NN_name> builds and
# runs the chapter's tests. NARRATED_WIDTH: see run_demo().
function(zero_add_chapter chapter)
  cmake_parse_arguments(ARG "" "MODE;NARRATED_WIDTH" "LIBRARIES;PROGRAMS" ${ARGN})
  set(folder "${PROJECT_SOURCE_DIR}/${chapter}")
  if(NOT ARG_NARRATED_WIDTH)
    set(ARG_NARRATED_WIDTH 2)
  endif()
  string(REGEX REPLACE "^[0-9]+_" "" name ${chapter})
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  file(GLOB tests CONFIGURE_DEPENDS "${folder}/*_test.cpp")
  file(GLOB benches CONFIGURE_DEPENDS "${folder}/*_bench.cpp")
  list(TRANSFORM ARG_PROGRAMS REPLACE "(.+)" "${folder}/\\1.cpp")
  list(REMOVE_ITEM sources ${tests} ${benches} "${folder}/minimal.cpp" ${ARG_PROGRAMS})

  add_library(zero_${chapter} STATIC ${sources})
  zero_configure_target(zero_${chapter})
  target_link_libraries(zero_${chapter} PUBLIC zero_train ${ARG_LIBRARIES})

  add_executable(${chapter} "${PROJECT_SOURCE_DIR}/tools/step/main.cpp")
  zero_configure_program(${chapter} zero_step zero_${chapter})
  target_compile_definitions(${chapter} PRIVATE ZERO_REGISTER_CHAPTER=register_${name}
    ZERO_MODE="${ARG_MODE}" ZERO_NARRATED_WIDTH=${ARG_NARRATED_WIDTH})

  zero_add_tests(${name}_test SOURCES ${tests} LABELS ${chapter} LIBRARIES zero_${chapter}
    TEST_FILTER "-*Slow*")
  if(ZERO_BUILD_BENCHMARKS AND benches)
    zero_add_benchmark(${name}_bench SOURCES ${benches} LIBRARIES zero_${chapter} LABELS ${chapter}
      SMOKE_TEST Chapter)
    set(smoke_test ${name}_bench bench_smoke_test)
  endif()
  if(TARGET ${name}_test)
    add_custom_target(check_${chapter}
      COMMAND ${CMAKE_CTEST_COMMAND} --output-on-failure -L ${chapter}
      DEPENDS ${name}_test ${chapter} ${smoke_test}
      WORKING_DIRECTORY "${CMAKE_BINARY_DIR}" USES_TERMINAL)
  endif()
  set_property(GLOBAL APPEND PROPERTY ZERO_CHAPTERS ${chapter})
endfunction()

# zero_add_example(<name> <NN_name> LIBRARIES <targets> [ARGUMENTS <words>] EXPECT <text> NOT_IN_HELP <text>):
# the program <NN_name>/<name>.cpp, which the lesson runs by itself, and a test that it prints <text>.
function(zero_add_example name chapter)
  cmake_parse_arguments(ARG "" "EXPECT;NOT_IN_HELP" "LIBRARIES;ARGUMENTS" ${ARGN})
  add_executable(${name} "${PROJECT_SOURCE_DIR}/${chapter}/${name}.cpp")
  zero_configure_program(${name} ${ARG_LIBRARIES})
  if(NOT ZERO_BUILD_TESTS)
    return()
  endif()
  add_dependencies(check_${chapter} ${name})
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGUMENTS})
  add_test(NAME ${name}.help COMMAND ${name} --help)
  set_tests_properties(${name} ${name}.help PROPERTIES LABELS ${chapter} TIMEOUT 60 ENVIRONMENT OMP_NUM_THREADS=1)
  set_tests_properties(${name} PROPERTIES PASS_REGULAR_EXPRESSION "${ARG_EXPECT}")
  set_tests_properties(${name}.help PROPERTIES FAIL_REGULAR_EXPRESSION "${ARG_NOT_IN_HELP}")
endfunction()

# zero_write_chapter_list(<file> <function>): writes a source file whose function registers the strategies of every
# chapter, so that the ladder, the tests and the benchmarks take a new chapter without being edited.
function(zero_write_chapter_list file function)
  get_property(chapters GLOBAL PROPERTY ZERO_CHAPTERS)
  set(declarations "")
  set(calls "")
  foreach(chapter IN LISTS chapters)
    string(REGEX REPLACE "^[0-9]+_" "" name ${chapter})
    string(APPEND declarations "void register_${name}(train::Registry& registry);\n")
    string(APPEND calls "  register_${name}(registry);\n")
  endforeach()
  file(CONFIGURE OUTPUT "${file}" CONTENT
"// Written by CMake from the list of chapters.
#include <zero/train/registry.hpp>

namespace zero {
${declarations}
namespace train {
void ${function}(Registry& registry) {
${calls}}
}  // namespace train
}  // namespace zero
")
endfunction()

# zero_add_exercise(<name> WRONG <answers> LABELS <labels>): the folder that calls it holds <name>_test.cpp and, in
# starter/, solution/ and wrong/, answers to it. ctest proves that the solution passes and that the
# starter and every wrong answer fail by an assertion. Where the reader has made mine/<name>.cpp, the
# program exercise_<name> tests that; else the starter.
function(zero_add_exercise name)
  cmake_parse_arguments(ARG "" "" "WRONG;LABELS" ${ARGN})
  add_library(exercise_${name}_tests OBJECT ${name}_test.cpp "${PROJECT_SOURCE_DIR}/tests/support/exercise_main.cpp")
  zero_configure_test(exercise_${name}_tests)
  target_include_directories(exercise_${name}_tests PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(exercise_${name}_tests PUBLIC zero_test_support zero_all_chapters)
  # A glob is looked at again by every build, so that the reader's copy counts as soon as it is there.
  file(GLOB own CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/mine/${name}.cpp")
  set(mine starter)
  if(own)
    set(mine mine)
  endif()
  set(answers "mine:${mine}/${name}" "starter:starter/${name}" "solution:solution/${name}")
  foreach(wrong IN LISTS ARG_WRONG)
    list(APPEND answers "wrong_${wrong}:wrong/${wrong}")
  endforeach()
  foreach(answer IN LISTS answers)
    string(REGEX MATCH "^([^:]+):(.+)$" _ "${answer}")
    set(kind "${CMAKE_MATCH_1}")
    set(program exercise_${name}_${kind})
    if(kind STREQUAL "mine")
      set(program exercise_${name})
    endif()
    add_executable(${program} "${CMAKE_MATCH_2}.cpp")
    zero_configure_target(${program})
    target_link_libraries(${program} PRIVATE exercise_${name}_tests)
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
    if(NOT kind STREQUAL "mine")
      set(flag --expect-failure)
      if(kind STREQUAL "solution")
        set(flag "")
      endif()
      add_test(NAME exercise.${name}.${kind} COMMAND ${program} ${flag} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
      set_tests_properties(exercise.${name}.${kind} PROPERTIES LABELS "exercise;${ARG_LABELS}" TIMEOUT 120
        ENVIRONMENT "OMP_NUM_THREADS=1")
      # ./run test NN runs what has the chapter's label, so it must build it too.
      foreach(label IN LISTS ARG_LABELS)
        add_dependencies(check_${label} ${program})
      endforeach()
    endif()
  endforeach()
endfunction()
