# The small programs, one a chapter: minimal.cpp is a whole program with model, data, loop and stage.

# zero_add_minimal(<NN_name>): the program <NN_name>_minimal of the folder's minimal.cpp. Of the library it
# links what counts memory, the communicator and the launcher, so that it is built soon after a fresh clone.
function(zero_add_minimal chapter)
  set(program ${chapter}_minimal)
  add_executable(${program} "${PROJECT_SOURCE_DIR}/${chapter}/minimal.cpp")
  zero_configure_program(${program} zero_distributed)
endfunction()
