# Run by CMake after a test program was linked: asks it for its tests and writes a file for ctest.
# A suite is one test of ctest and not each of its tests: to start a program that links LibTorch takes
# half a second, which is more than most tests need.
#
#   cmake -DPROGRAM=<path> -DFILTER=<GoogleTest filter> -DPREFIX=<text> -DFOLDER=<where tests run>
#         -DTOGETHER=<true: one test for the whole program, with its name>
#         -DPROPERTIES=<properties of set_tests_properties> -DOUTPUT=<file> -P ZeroDiscoverTests.cmake

set(all "${FILTER}")
if(all STREQUAL "")
  set(all "*")
endif()
execute_process(
  COMMAND "${PROGRAM}" --gtest_list_tests "--gtest_filter=${all}"
  WORKING_DIRECTORY "${FOLDER}" TIMEOUT 120
  OUTPUT_VARIABLE listed RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} does not list its tests (${result}):\n${listed}")
endif()

# A line is either "Suite." or "  Test", both perhaps with a remark after a #.
string(REPLACE ";" "" listed "${listed}")
string(REPLACE "[" "(" listed "${listed}")
string(REPLACE "]" ")" listed "${listed}")
string(REPLACE "\n" ";" lines "${listed}")
set(suites "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE " +#.*$" "" line "${line}")
  if(line MATCHES "^  +([^ ]+)$")
    string(APPEND tests_${suite} ":${suite}${CMAKE_MATCH_1}")
  elseif(line MATCHES "^([^ ]+\\.)$")
    set(suite "${CMAKE_MATCH_1}")
    list(APPEND suites "${suite}")
    set(tests_${suite} "")
  endif()
endforeach()

if(suites STREQUAL "")
  message(FATAL_ERROR "${PROGRAM} has no test that '${all}' lets through")
endif()

set(script "# Written by ZeroDiscoverTests.cmake.\n")
if(TOGETHER)
  get_filename_component(name "${PROGRAM}" NAME)
  string(APPEND script "add_test([==[${PREFIX}${name}]==] [==[${PROGRAM}]==] [==[--gtest_filter=${all}]==])\n"
    "set_tests_properties([==[${PREFIX}${name}]==] PROPERTIES WORKING_DIRECTORY [==[${FOLDER}]==]\n"
    "  SKIP_RETURN_CODE 77 ${PROPERTIES})\n")
  set(suites "")
endif()
foreach(suite IN LISTS suites)
  # Only what the filter let through, named one by one where there is a filter.
  string(REGEX REPLACE "^:" "" tests "${tests_${suite}}")
  if(FILTER STREQUAL "")
    set(tests "${suite}*")
  endif()
  string(REGEX REPLACE "\\.$" "" name "${PREFIX}${suite}")
  string(APPEND script "add_test([==[${name}]==] [==[${PROGRAM}]==] [==[--gtest_filter=${tests}]==])\n"
    "set_tests_properties([==[${name}]==] PROPERTIES WORKING_DIRECTORY [==[${FOLDER}]==]\n"
    "  SKIP_RETURN_CODE 77 ${PROPERTIES})\n")
endforeach()
file(WRITE "${OUTPUT}" "${script}")
