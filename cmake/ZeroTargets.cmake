# Helpers that declare the project's libraries, chapters and tests.
# One precompiled header, built once and shared by every target (see docs/decisions.md).
# GCC uses it only under exactly the flags that it was made with, warnings included.
set(ZERO_WARNINGS -Wall -Wextra -Wpedantic -Wno-unused-parameter)
# For what waits or writes texts: it compiles faster than with -O3.
set(ZERO_COMPILED_SOON "$<$<CONFIG:Release>:-O1>")
add_library(zero_pch OBJECT cmake/pch.cpp)
target_link_libraries(zero_pch PUBLIC Zero::torch)
target_compile_options(zero_pch PRIVATE ${ZERO_WARNINGS})
target_precompile_headers(zero_pch PRIVATE cmake/pch.hpp)

# A learner's answer is compiled at each save, so that its header has no more than small programs need: GCC
# instantiates for every object what the header left open, which is most of the time.
add_library(zero_small_pch OBJECT cmake/pch.cpp)
target_link_libraries(zero_small_pch PUBLIC zero_distributed)
target_compile_options(zero_small_pch PRIVATE ${ZERO_WARNINGS} "$<$<CONFIG:Release>:-Og>")
target_precompile_headers(zero_small_pch PRIVATE cmake/small_pch.hpp)

# zero_configure_small_program(<target> <library>...): the small programs of chapters and answers to exercises.
function(zero_configure_small_program target)
  target_compile_options(${target} PRIVATE ${ZERO_WARNINGS} "$<$<CONFIG:Release>:-Og>")
  target_precompile_headers(${target} REUSE_FROM zero_small_pch)
  target_link_libraries(${target} PRIVATE ${ARGN})
endfunction()

# Tests have one of their own, with GoogleTest, and are optimised less than what they test: that takes
# a third off their compilation and costs them nothing.
if(ZERO_BUILD_TESTS)
  add_library(zero_test_pch OBJECT cmake/pch.cpp)
  target_link_libraries(zero_test_pch PUBLIC Zero::torch GTest::gmock)
  target_compile_options(zero_test_pch PRIVATE ${ZERO_WARNINGS} ${ZERO_COMPILED_SOON})
  target_precompile_headers(zero_test_pch PRIVATE cmake/pch.hpp <gmock/gmock.h> <gtest/gtest.h>)
endif()

function(zero_configure_test target)
  target_compile_options(${target} PRIVATE ${ZERO_WARNINGS} ${ZERO_COMPILED_SOON})
  target_precompile_headers(${target} REUSE_FROM zero_test_pch)
endfunction()

# zero_configure_target(<target> <library>...): what every library and program has in common.
function(zero_configure_target target)
  target_compile_options(${target} PRIVATE ${ZERO_WARNINGS})
  target_precompile_headers(${target} REUSE_FROM zero_pch)
  target_link_libraries(${target} PUBLIC ${ARGN})
endfunction()

# zero_add_program(<name> <source> <library>...)
function(zero_add_program name source)
  add_executable(${name} "${source}")
  zero_configure_target(${name} ${ARGN})
endfunction()

# zero_compile_in_batches(<target> <files>): compiles the sources of a target in batches of that many files: one source
# includes the others one after the other. GCC instantiates for every
# object the templates that the precompiled header left open, which takes longer than most files, so this
# halves the time of a whole build. -DZERO_BATCHES=OFF for one object a file. A name in an unnamed namespace
# is then seen by the files after it: it may have to be told apart. Lessons are not compiled like this.
option(ZERO_BATCHES "Compile the common library and the tests in batches of files" ON)
function(zero_compile_in_batches target files)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${ZERO_BATCHES} UNITY_BUILD_BATCH_SIZE ${files})
endfunction()

# zero_add_test(<name> COMMAND <words> LABELS <labels> [ENVIRONMENT <NAME=value>...] [PROPERTIES <name> <value>...]):
# a test of ctest, which runs in the folder of the project. Ranks are forked from a program that has bound all its
# symbols (LD_BIND_NOW), so that each need not do it again: that is 6 % of a test's time.
function(zero_add_test name)
  if(NOT ZERO_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "COMMAND;LABELS;ENVIRONMENT;PROPERTIES" ${ARGN})
  add_test(NAME ${name} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 1500 SKIP_RETURN_CODE 77 ENVIRONMENT
    "ZERO_PYTHON=${ZERO_PYTHON};PYTHONDONTWRITEBYTECODE=1;OMP_NUM_THREADS=1;LD_BIND_NOW=1;${ARG_ENVIRONMENT}"
    ${ARG_PROPERTIES})
endfunction()

# zero_add_tests(<program> [SOURCES <patterns>] LABELS <labels> [LIBRARIES <targets>] [ENVIRONMENT <NAME=value>...]
#                [PROPERTIES <name> <value>...] [PARTS <name> <GoogleTest filter>...]):
# a GoogleTest program, which is one test of ctest; names with Slow in them are left out. Each of the PARTS is a test of
# its own, <program>.<name>: suites that are slow (part slow has that label), or that may be skipped, which ctest shows
# only of a whole test.
function(zero_add_tests program)
  cmake_parse_arguments(ARG "" "" "SOURCES;LABELS;LIBRARIES;ENVIRONMENT;PROPERTIES;PARTS" ${ARGN})
  if(NOT ZERO_BUILD_TESTS)
    return()
  endif()
  set(sources "")
  if(ARG_SOURCES)
    file(GLOB sources CONFIGURE_DEPENDS ${ARG_SOURCES})
    list(SORT sources)
  endif()
  add_executable(${program} ${sources})
  zero_configure_test(${program})
  zero_compile_in_batches(${program} 5)
  target_link_libraries(${program} PRIVATE zero_test_support ${ARG_LIBRARIES})
  set(others "-*Slow*")
  while(ARG_PARTS)
    list(POP_FRONT ARG_PARTS name filter)
    string(APPEND others ":${filter}")
    string(REGEX MATCH "^slow$" slow ${name})
    zero_add_test(${program}.${name} COMMAND ${program} --gtest_brief=1 --gtest_filter=${filter}
      LABELS ${ARG_LABELS} ${slow} ENVIRONMENT ${ARG_ENVIRONMENT})
  endwhile()
  zero_add_test(${program} COMMAND ${program} --gtest_brief=1 --gtest_filter=${others} LABELS ${ARG_LABELS}
    ENVIRONMENT ${ARG_ENVIRONMENT} PROPERTIES ${ARG_PROPERTIES})
endfunction()

# zero_add_benchmark(<program> SOURCES <files> [LIBRARIES <targets>] SMOKE <words> [LABELS <labels>]):
# a program of benchmarks, which check their own results. With the options SMOKE, it is brief and part of target
# check_benchmarks; with LABELS also test bench.<program> of ctest, and built with the tests.
function(zero_add_benchmark program)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES;SMOKE;LABELS" ${ARGN})
  add_executable(${program} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  zero_configure_target(${program} ${ARG_LIBRARIES} zero_bench)
  set_property(GLOBAL APPEND PROPERTY ZERO_BENCHMARKS ${program})
  set_property(GLOBAL APPEND PROPERTY ZERO_BENCHMARK_CHECKS COMMAND ${program} ${ARG_SMOKE})
  if(ARG_LABELS AND ZERO_BUILD_TESTS)
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL FALSE)
    zero_add_test(bench.${program} COMMAND ${program} ${ARG_SMOKE} LABELS ${ARG_LABELS})
  endif()
endfunction()

# zero_add_chapters(<target> <function> <NN_name>...): the target has a function that registers the modes of these
# chapters.
function(zero_add_chapters target function)
  set(chapters ${ARGN})
  list(REMOVE_DUPLICATES chapters)
  target_sources(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tools/ladder/modes/all_chapters.cpp")
  list(TRANSFORM chapters REPLACE "(.+)" "zero_\\1_modes" OUTPUT_VARIABLE libraries)
  target_link_libraries(${target} PUBLIC ${libraries})
  list(TRANSFORM chapters REPLACE "^[0-9]+_(.+)" "ZERO_CHAPTER(\\1)")
  list(JOIN chapters " " chapters)
  target_compile_definitions(${target} PRIVATE ZERO_REGISTER_CHAPTERS=${function} "ZERO_CHAPTERS=${chapters}")
endfunction()

# zero_add_chapter(<NN_name> MODE <strategy> [NARRATED_WIDTH <n>] [LIBRARIES <targets>] [PROGRAMS <names>]):
# the folder's *.cpp files except tests and the PROGRAMS become the library zero_<NN_name>, if there are any;
# tools/ladder/modes/<NN_name>.cpp, which has the names of its modes, the library zero_<NN_name>_modes;
# tools/step/main.cpp becomes the program <NN_name>, which trains under <strategy>, and tests/bench/register_chapter.cpp
# with the library zero_chapter_bench the program <name>_bench; minimal.cpp, if there is one, the program
# <NN_name>_minimal, which links little, so that it is built soon after a fresh clone, and autograd.cpp
# <NN_name>_autograd, and so on for the other small programs; *_test.cpp the program <name>_test
# with label <NN_name>, which has those of tests/parity/ as well: they compare the chapter's modes with chapter 00.
# Target check_<NN_name> builds and runs the chapter's tests. NARRATED_WIDTH: see run_demo().
# zero_add_chapter(<NN_name> STRATEGIES_OF <NN_name>... [LIBRARIES …] [PROGRAMS …]):
# a chapter whose subject is not a strategy. It has neither <NN_name> nor <name>_bench. Its tests run under the
# strategies of the chapters that are named; but for *_schedule_test.cpp, which run none, they are also the object
# library zero_<NN_name>_tests, so that other programs can run them under others. It may have no tests of its own.
function(zero_add_chapter chapter)
  cmake_parse_arguments(ARG "" "MODE;NARRATED_WIDTH" "STRATEGIES_OF;LIBRARIES;PROGRAMS" ${ARGN})
  set(folder "${PROJECT_SOURCE_DIR}/${chapter}")
  if(NOT ARG_NARRATED_WIDTH)
    set(ARG_NARRATED_WIDTH 2)
  endif()
  string(REGEX REPLACE "^[0-9]+_" "" name ${chapter})
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  file(GLOB tests CONFIGURE_DEPENDS "${folder}/*_test.cpp")
  set(small_programs minimal autograd units hpz qgz ulysses sequence partitioned)
  set(programs ${small_programs} ${ARG_PROGRAMS})
  list(TRANSFORM programs REPLACE "(.+)" "${folder}/\\1.cpp")
  list(REMOVE_ITEM sources ${tests} ${programs})
  list(FILTER sources EXCLUDE REGEX "_bench\\.cpp$")

  set(library "")
  if(sources)
    set(library zero_${chapter})
    add_library(${library} STATIC ${sources})
    zero_configure_target(${library} zero_train ${ARG_LIBRARIES})
    set_property(GLOBAL APPEND PROPERTY ZERO_CHAPTER_LIBRARIES ${chapter})
  endif()

  set(programs "")
  if(ARG_MODE)
    add_library(zero_${chapter}_modes STATIC "${PROJECT_SOURCE_DIR}/tools/ladder/modes/${chapter}.cpp")
    zero_configure_target(zero_${chapter}_modes zero_registry ${library})
    set(programs ${chapter})
    zero_add_program(${chapter} "${PROJECT_SOURCE_DIR}/tools/step/main.cpp" zero_step zero_${chapter}_modes)
    target_compile_definitions(${chapter} PRIVATE ZERO_REGISTER_CHAPTER=register_${name}
      ZERO_MODE="${ARG_MODE}" ZERO_NARRATED_WIDTH=${ARG_NARRATED_WIDTH})
    set_target_properties(${chapter} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)  # one function without LibTorch
    set_property(GLOBAL APPEND PROPERTY ZERO_CHAPTERS ${chapter})
  endif()

  foreach(small ${small_programs})
    if(EXISTS "${folder}/${small}.cpp")
      add_executable(${chapter}_${small} "${folder}/${small}.cpp")
      zero_configure_small_program(${chapter}_${small} zero_distributed)
      set_property(GLOBAL APPEND PROPERTY ZERO_MINIMAL_PROGRAMS ${chapter}_${small})
    endif()
  endforeach()

  if(ARG_MODE)
    set(ARG_STRATEGIES_OF 00_simple_ddp ${chapter})
    zero_add_tests(${name}_test SOURCES "${folder}/*_test.cpp" LABELS ${chapter} LIBRARIES zero_parity_tests
      ENVIRONMENT "ZERO_PARITY_CELLS=${PROJECT_BINARY_DIR}/parity_cells"
      PROPERTIES FIXTURES_REQUIRED parity_cells_are_empty FIXTURES_SETUP parity_cells)
    if(ZERO_BUILD_BENCHMARKS)
      zero_add_benchmark(${name}_bench SOURCES "${PROJECT_SOURCE_DIR}/tests/bench/register_chapter.cpp"
        LABELS ${chapter} LIBRARIES zero_chapter_bench zero_${chapter}_modes SMOKE --nproc 2 --layers 1 --seq-len 8 --steps 2)
      target_compile_definitions(${name}_bench PRIVATE ZERO_REGISTER_CHAPTER=register_${name})
      set_target_properties(${name}_bench PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
    endif()
  elseif(ZERO_BUILD_TESTS AND tests)
    list(FILTER tests EXCLUDE REGEX "_schedule_test\\.cpp$")
    add_library(zero_${chapter}_tests OBJECT ${tests})
    zero_configure_test(zero_${chapter}_tests)
    zero_compile_in_batches(zero_${chapter}_tests 5)
    target_link_libraries(zero_${chapter}_tests PUBLIC zero_test_support ${library})
    zero_add_tests(${name}_test SOURCES "${folder}/*_schedule_test.cpp" LABELS ${chapter}
      LIBRARIES zero_${chapter}_tests)
  endif()
  if(TARGET ${name}_test)
    zero_add_chapters(${name}_test register_all_chapters ${ARG_STRATEGIES_OF})
  endif()
  if(ZERO_BUILD_TESTS)
    add_custom_target(check_${chapter}
      COMMAND ${CMAKE_CTEST_COMMAND} --output-on-failure -L ${chapter}
      DEPENDS $<TARGET_NAME_IF_EXISTS:${name}_test> ${programs} $<TARGET_NAME_IF_EXISTS:${name}_bench>
      WORKING_DIRECTORY "${CMAKE_BINARY_DIR}" USES_TERMINAL)
  endif()
endfunction()

# zero_add_example(<name> <NN_name> LIBRARIES <targets> [ARGUMENTS <words>] EXPECT <text>):
# the program <NN_name>/<name>.cpp, which the lesson runs by itself, and a test that it prints <text>.
function(zero_add_example name chapter)
  cmake_parse_arguments(ARG "" "EXPECT" "LIBRARIES;ARGUMENTS" ${ARGN})
  zero_add_program(${name} "${PROJECT_SOURCE_DIR}/${chapter}/${name}.cpp" ${ARG_LIBRARIES})
  target_compile_options(${name} PRIVATE ${ZERO_COMPILED_SOON})
  if(ZERO_BUILD_TESTS)
    add_dependencies(check_${chapter} ${name})
    zero_add_test(${name} COMMAND ${name} ${ARG_ARGUMENTS} LABELS ${chapter}
      PROPERTIES PASS_REGULAR_EXPRESSION "${ARG_EXPECT}")
    zero_add_test(${name}.help COMMAND ${name} --help LABELS ${chapter}
      PROPERTIES FAIL_REGULAR_EXPRESSION "rank 0|checked")
  endif()
endfunction()
