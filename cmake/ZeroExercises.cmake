# The exercises. ./run exercise <id> grades the reader's answer, mine/<file> in the exercise's folder. A new exercise is
# a folder NN_chapter/exercises/<id>_<name>/ with
#   task.md, hints.md   the task, and hints in sections "## N. ..." (CONTRIBUTING.md says more);
#   wrong/              wrong answers, each a whole file or a .patch to the solution, with a line "expects: <sentence>":
#                       the regular expression by which it must be refused;
#   CMakeLists.txt      one call of zero_add_exercise(), with the sentence of the starter.
# The starter is the solution under starter.patch, where there is one.
# If the answer is a small program, <file> is minimal.cpp, or <PROGRAM>.cpp. The solution is that of the chapter, and
# without a patch the starter is that of the chapter BEFORE.
# Else the folder has solution.*, check.cpp, and without a patch starter.*. FUNCTIONS in C++ are <file> <id>.cpp, and
# exercise_<id>::check() there takes an Answer, which <id>.hpp declares, with a pointer to each. Numbers are <id>.txt;
# check() takes Numbers. LIBRARIES is what answer and check.cpp link besides the grader.
# The exercise's test proves that the solution is right, and that the starter and each wrong answer fail by their
# sentence.

# zero_apply_patch(<program> <patch> <output>): <output> becomes <program> with <patch> applied, at every build.
# git takes a patch as it is only where it finds no repository.
function(zero_apply_patch program patch output)
  find_package(Git REQUIRED)
  cmake_path(GET output PARENT_PATH folder)
  file(MAKE_DIRECTORY "${folder}")
  add_custom_command(OUTPUT "${output}" DEPENDS "${program}" "${patch}" WORKING_DIRECTORY "${folder}" VERBATIM
    COMMAND "${CMAKE_COMMAND}" -E copy "${program}" "${output}"
    COMMAND "${CMAKE_COMMAND}" -E env GIT_DIR=/ "${GIT_EXECUTABLE}" apply "${patch}")
endfunction()

# zero_add_exercise(<id> STARTER <sentence> [BEFORE <NN_name>] [PROGRAM <name>] [FUNCTIONS <names>] [LIBRARIES <targets>])
function(zero_add_exercise id)
  cmake_parse_arguments(ARG "" "BEFORE;PROGRAM;STARTER" "FUNCTIONS;LIBRARIES" ${ARGN})
  set(folder "${CMAKE_CURRENT_SOURCE_DIR}")
  set(build "${CMAKE_CURRENT_BINARY_DIR}")
  string(REGEX REPLACE ".*/([^/]+)/exercises/.*" "\\1" chapter "${folder}")
  file(GLOB solution "${folder}/solution.*")
  # What makes a program of an answer: `grader` stands before it, `program` names it.
  if(solution)
    cmake_path(GET solution EXTENSION type)
    set(file ${id}${type})
    set(starter "${folder}/starter${type}")
    set(grader "#include \"${folder}/check.cpp\"\n#include <grading/check.hpp>\n")
    set(program "")
    set(argument "zero::exercise::Numbers(\"ANSWER\")")
    if(ARG_FUNCTIONS)
      set(program "#include \"ANSWER\"\n")
      list(TRANSFORM ARG_FUNCTIONS PREPEND "&")
      list(JOIN ARG_FUNCTIONS ", " functions)
      set(argument "{${functions}}")
    endif()
    string(APPEND program "int main(int, char**) {\n"
      "  return zero::exercise::grade(\"${id}\", [] { exercise_${id}::check(${argument}); });\n}\n")
  else()
    set(file minimal.cpp)
    if(ARG_PROGRAM)
      set(file ${ARG_PROGRAM}.cpp)
    endif()
    set(solution "${PROJECT_SOURCE_DIR}/${chapter}/${file}")
    set(starter "${PROJECT_SOURCE_DIR}/${ARG_BEFORE}/${file}")
    set(grader "#undef ZERO_EXERCISE\n#define ZERO_EXERCISE \"${id}\"\n#include <grading/grading.hpp>\n")
    if(file STREQUAL "autograd.cpp")
      string(PREPEND grader "#include <torch/csrc/autograd/custom_function.h>\n")
    endif()
    set(program "#include \"ANSWER\"\n")
  endif()
  if(EXISTS "${folder}/starter.patch")
    set(starter "${build}/starter/${file}")
    zero_apply_patch("${solution}" "${folder}/starter.patch" "${starter}")
  endif()
  # A glob is looked at again by every build, so that the reader's copy counts as soon as it is there.
  file(GLOB mine CONFIGURE_DEPENDS "${folder}/mine/${file}")
  if(NOT mine)
    set(mine "${starter}")
  endif()

  set(names solution starter)
  set(files "${solution}" "${starter}")
  set(sentences "${id} is right" "${ARG_STARTER}")
  file(GLOB answers CONFIGURE_DEPENDS "${folder}/wrong/*")
  foreach(answer IN LISTS answers)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${answer}")
    file(STRINGS "${answer}" sentence REGEX "expects: " LIMIT_COUNT 1)
    string(REGEX REPLACE ".*expects: " "" sentence "${sentence}")
    if(NOT sentence)
      message(FATAL_ERROR "${answer} has no line 'expects: <sentence>'")
    endif()
    cmake_path(GET answer STEM name)
    if(answer MATCHES "\\.patch$")
      zero_apply_patch("${solution}" "${answer}" "${build}/${name}/${file}")
      set(answer "${build}/${name}/${file}")
    endif()
    list(APPEND names ${name})
    list(APPEND files "${answer}")
    list(APPEND sentences "${sentence}")
  endforeach()

  # All answers are in one file, each in a namespace, behind the grader. Those of a chapter make one object, because an
  # object takes seconds before its own first line: programs last, because their grader replaces names.
  string(REPLACE ANSWER "${mine}" text "${grader}${program}")
  file(CONFIGURE OUTPUT "${build}/mine.cpp" CONTENT "@text@" @ONLY)
  set(text "${grader}#include <tests/minimal/answers.hpp>\n")
  set(table "")
  foreach(name answer sentence IN ZIP_LISTS names files sentences)
    string(REPLACE ANSWER "${answer}" main "${program}")
    string(APPEND text "namespace answer_${id}_${name} {\n${main}}\n")
    string(APPEND table "  {\"${id} ${name}\", &answer_${id}_${name}::main, R\"~(${sentence})~\"},\n")
  endforeach()
  string(APPEND text "static const zero::testing::Answers answers_${id}({\n${table}});\n")
  zero_add_test(exercise.${id} COMMAND ${chapter}_answers ${id} LABELS exercise ${chapter})
  file(CONFIGURE OUTPUT "${build}/answers.cpp" CONTENT "@text@" @ONLY)
  set_source_files_properties("${mine}" ${files} PROPERTIES HEADER_FILE_ONLY ON)
  add_executable(exercise_${id} EXCLUDE_FROM_ALL "${build}/mine.cpp" "${mine}")
  zero_configure_small_program(exercise_${id} zero_grading ${ARG_LIBRARIES})
  target_include_directories(exercise_${id} PRIVATE "${folder}")
  add_custom_target(exercise_${id}_files DEPENDS ${files})
  set(all_answers ${chapter}_answers)
  if(NOT TARGET ${all_answers})
    set(all "${PROJECT_BINARY_DIR}/answers/${chapter}.cpp")
    file(GENERATE OUTPUT "${all}" CONTENT "$<JOIN:$<TARGET_PROPERTY:${all_answers},ZERO_CHECKS>,>$<JOIN:$<TARGET_PROPERTY:${all_answers},ZERO_PROGRAMS>,>")
    add_executable(${all_answers} "${all}")
    zero_configure_test(${all_answers})
    target_link_libraries(${all_answers} PRIVATE exercise_answers zero_grading GTest::gmock)
    add_dependencies(check_${chapter} ${all_answers})
  endif()
  set(kind ZERO_CHECKS)
  if(NOT EXISTS "${folder}/check.cpp")
    set(kind ZERO_PROGRAMS)
  endif()
  set_property(TARGET ${all_answers} APPEND PROPERTY ${kind} "#include \"${build}/answers.cpp\"\n")
  target_include_directories(${all_answers} PRIVATE "${folder}")
  target_link_libraries(${all_answers} PRIVATE ${ARG_LIBRARIES})
  add_dependencies(${all_answers} exercise_${id}_files)
endfunction()
