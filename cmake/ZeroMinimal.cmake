# The small programs, one a chapter: minimal.cpp is a whole program with model, data, loop and stage.

# zero_add_minimal(<NN_name>): the program <NN_name>_minimal of the folder's minimal.cpp. Of the library it
# links what counts memory, the communicator and the launcher, so that it is built soon after a fresh clone.
function(zero_add_minimal chapter)
  set(program ${chapter}_minimal)
  add_executable(${program} "${PROJECT_SOURCE_DIR}/${chapter}/minimal.cpp")
  zero_configure_program(${program} zero_distributed)
  set_property(GLOBAL APPEND PROPERTY ZERO_MINIMAL_PROGRAMS ${program})
endfunction()

# The small programs beside the chapters' classes: the program minimal_test with label minimal.
function(zero_add_minimal_test)
  zero_add_tests(minimal_test SOURCES "${PROJECT_SOURCE_DIR}/tests/minimal/class_test.cpp"
    LABELS minimal LIBRARIES zero_all_chapters)
  if(TARGET minimal_test)
    get_property(programs GLOBAL PROPERTY ZERO_MINIMAL_PROGRAMS)
    add_dependencies(minimal_test ${programs})
    target_compile_definitions(minimal_test PRIVATE ZERO_MINIMAL_FOLDER="${CMAKE_BINARY_DIR}/bin")
  endif()
endfunction()
