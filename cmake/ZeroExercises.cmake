# The small programs, one a chapter (minimal.cpp is a whole program with model, data, loop and stage), and the exercises.

# zero_add_minimal(<NN_name>): the program <NN_name>_minimal of the folder's minimal.cpp. Of the library it
# links what counts memory, the communicator and the launcher, so that it is built soon after a fresh clone.
function(zero_add_minimal chapter)
  set(program ${chapter}_minimal)
  add_executable(${program} "${PROJECT_SOURCE_DIR}/${chapter}/minimal.cpp")
  zero_configure_program(${program} zero_distributed)
  set_property(GLOBAL APPEND PROPERTY ZERO_MINIMAL_PROGRAMS ${program})
endfunction()

# Tests of the small programs, with label minimal: minimal_test asks what they print, and links none of the
# library, minimal_class_test compares them with the chapters' classes.
function(zero_add_minimal_tests)
  if(NOT ZERO_BUILD_TESTS)
    return()
  endif()
  set(folder "${PROJECT_SOURCE_DIR}/tests/minimal")
  add_executable(minimal_test "${folder}/program_test.cpp")
  zero_configure_test(minimal_test)
  target_include_directories(minimal_test PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(minimal_test PRIVATE Zero::torch GTest::gmock GTest::gtest_main)
  zero_add_test(minimal_test COMMAND minimal_test --gtest_brief=1 LABELS minimal)
  zero_add_tests(minimal_class_test SOURCES "${folder}/class_test.cpp" LABELS minimal LIBRARIES zero_all_chapters)
  get_property(programs GLOBAL PROPERTY ZERO_MINIMAL_PROGRAMS)
  foreach(test minimal_test minimal_class_test)
    add_dependencies(${test} ${programs})
    target_compile_definitions(${test} PRIVATE ZERO_MINIMAL_FOLDER="${CMAKE_BINARY_DIR}/bin"
      ZERO_SOURCE_FOLDER="${PROJECT_SOURCE_DIR}")
  endforeach()
endfunction()

# zero_apply_patch(<program> <patch> <output>): <output> becomes <program> with <patch> applied, at every build.
# git takes a patch as it is only where it finds no repository.
function(zero_apply_patch program patch output)
  find_package(Git REQUIRED)
  get_filename_component(folder "${output}" DIRECTORY)
  add_custom_command(OUTPUT "${output}" DEPENDS "${program}" "${patch}" VERBATIM
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${folder}"
    COMMAND "${CMAKE_COMMAND}" -E copy "${program}" "${output}"
    COMMAND "${CMAKE_COMMAND}" -E chdir "${folder}" "${CMAKE_COMMAND}" -E env GIT_DIR=/
      "${GIT_EXECUTABLE}" apply "${patch}")
endfunction()

# zero_add_small_exercise(<id> [BEFORE <NN_name>] STARTER <sentence>): a step from one small program to the next.
# The folder that calls it holds task.md, hints.md and wrong/*.patch; the solution is the chapter's minimal.cpp,
# the starter that of the chapter BEFORE, or the solution under starter.patch. Program exercise_<id> grades the
# reader's mine/minimal.cpp, where there is one, else the starter. ctest proves that the solution is right, and
# that the starter and each wrong answer fail by their sentence: a regular expression, in a patch after "expects: ".
function(zero_add_small_exercise id)
  cmake_parse_arguments(ARG "" "BEFORE;STARTER" "" ${ARGN})
  set(folder "${CMAKE_CURRENT_SOURCE_DIR}")
  set(answers "${CMAKE_CURRENT_BINARY_DIR}")
  get_filename_component(chapter "${folder}/../.." ABSOLUTE)
  get_filename_component(chapter "${chapter}" NAME)
  set(solution "${PROJECT_SOURCE_DIR}/${chapter}/minimal.cpp")
  set(starter "${PROJECT_SOURCE_DIR}/${ARG_BEFORE}/minimal.cpp")
  if(NOT ARG_BEFORE)
    set(starter "${answers}/starter/minimal.cpp")
    zero_apply_patch("${solution}" "${folder}/starter.patch" "${starter}")
  endif()

  # A glob is looked at again by every build, so that the reader's copy counts as soon as it is there.
  file(GLOB own CONFIGURE_DEPENDS "${folder}/mine/minimal.cpp")
  if(NOT own)
    set(own "${starter}")
  endif()
  set(graded "#define ZERO_EXERCISE \"${id}\"\n#include <tools/exercise/grading.hpp>\n")
  file(CONFIGURE OUTPUT "${answers}/mine.cpp" CONTENT "${graded}#include \"${own}\"\n")
  add_executable(exercise_${id} EXCLUDE_FROM_ALL "${answers}/mine.cpp" "${own}")
  set_source_files_properties("${own}" PROPERTIES HEADER_FILE_ONLY ON)
  zero_configure_program(exercise_${id} zero_grading)

  # All answers of a step in one file, each in a namespace.
  set(sentences "solution:${id} is right" "starter:${ARG_STARTER}")
  set(files "solution:${solution}" "starter:${starter}")
  file(GLOB patches CONFIGURE_DEPENDS "${folder}/wrong/*.patch")
  foreach(patch IN LISTS patches)
    get_filename_component(name "${patch}" NAME_WE)
    zero_apply_patch("${solution}" "${patch}" "${answers}/${name}/minimal.cpp")
    file(STRINGS "${patch}" sentence REGEX "^expects: " LIMIT_COUNT 1)
    string(REPLACE "expects: " "" sentence "${sentence}")
    if(NOT sentence)
      message(FATAL_ERROR "${patch} has no line 'expects: <sentence>'")
    endif()
    list(APPEND sentences "${name}:${sentence}")
    list(APPEND files "${name}:${answers}/${name}/minimal.cpp")
  endforeach()
  set(text "// Written by CMake.\n${graded}#include <tests/minimal/answers.hpp>\n")
  set(table "")
  set(sources "")
  foreach(file IN LISTS files)
    string(REGEX MATCH "^([^:]+):(.+)$" _ "${file}")
    string(APPEND text "namespace answer_${id}_${CMAKE_MATCH_1} {\n#include \"${CMAKE_MATCH_2}\"\n}\n")
    string(APPEND table "  {\"${id} ${CMAKE_MATCH_1}\", &answer_${id}_${CMAKE_MATCH_1}::main},\n")
    list(APPEND sources "${CMAKE_MATCH_2}")
  endforeach()
  string(APPEND text "static const zero::testing::Answers answers({\n${table}});\n")
  file(CONFIGURE OUTPUT "${answers}/answers.cpp" CONTENT "@text@" @ONLY)
  set_source_files_properties(${sources} PROPERTIES HEADER_FILE_ONLY ON)
  add_library(exercise_${id}_answers OBJECT "${answers}/answers.cpp" ${sources})
  zero_configure_test(exercise_${id}_answers)
  target_link_libraries(exercise_${id}_answers PRIVATE zero_grading GTest::gmock)
  set_property(GLOBAL APPEND PROPERTY ZERO_ANSWERS exercise_${id}_answers)
  foreach(sentence IN LISTS sentences)
    string(REGEX MATCH "^([^:]+):(.+)$" _ "${sentence}")
    zero_add_test(exercise.${id}.${CMAKE_MATCH_1} COMMAND exercise_answers "${id} ${CMAKE_MATCH_1}"
      LABELS exercise ${chapter} PROPERTIES PASS_REGULAR_EXPRESSION "${CMAKE_MATCH_2}")
  endforeach()
endfunction()

# The program exercise_answers, which grades any answer of the exercises on the small programs.
function(zero_add_exercise_answers)
  get_property(answers GLOBAL PROPERTY ZERO_ANSWERS)
  add_executable(exercise_answers "${PROJECT_SOURCE_DIR}/tests/minimal/answers.cpp")
  zero_configure_test(exercise_answers)
  target_link_libraries(exercise_answers PRIVATE zero_grading GTest::gmock ${answers})
  get_property(chapters GLOBAL PROPERTY ZERO_CHAPTERS)
  foreach(chapter IN LISTS chapters)
    add_dependencies(check_${chapter} exercise_answers)
  endforeach()
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
    if(NOT kind STREQUAL "mine")
      set(flag --expect-failure)
      if(kind STREQUAL "solution")
        set(flag "")
      endif()
      zero_add_test(exercise.${name}.${kind} COMMAND ${program} ${flag} LABELS exercise ${ARG_LABELS})
      # ./run test NN runs what has the chapter's label, so it must build it too.
      foreach(label IN LISTS ARG_LABELS)
        add_dependencies(check_${label} ${program})
      endforeach()
    endif()
  endforeach()
endfunction()
