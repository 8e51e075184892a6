# Writes wrong_offloads.cpp: for each mutant the library's offload with one line changed, in a namespace of its own.
set(folder "${PROJECT_SOURCE_DIR}/10_offload")
set(right "")
foreach(file tile_file.hpp offloaded.hpp tile_file.cpp offloaded.cpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${folder}/${file}")
  file(READ "${folder}/${file}" text)
  string(APPEND right "${text}")
endforeach()
string(REGEX MATCHALL "#include [^\n]*" includes "${right}")
list(JOIN includes "\n" includes)
set(wrong_offloads "#define XXH_INLINE_ALL\n${includes}\n")
string(REGEX REPLACE "#(include|pragma|define) [^\n]*" "" right "${right}")

# Adds zero::wrong::<name>: `to` in place of `from`. If that is not there any more the test says that nothing is wrong.
function(zero_add_wrong_offload name from to)
  string(REPLACE "${from}" "${to}" wrong "${right}")
  string(REPLACE "namespace zero::optim {" "namespace zero::wrong::${name} {\nusing namespace optim;" wrong "${wrong}")
  set(wrong_offloads "${wrong_offloads}${wrong}" PARENT_SCOPE)
endfunction()

zero_add_wrong_offload(read_not_waited_for
"    start(i);
    update(tiles[i], buffer(i));
    moving.get();"
"    update(tiles[i], buffer(i));
    if (i > 0) moving.get();
    start(i);")
zero_add_wrong_offload(write_dropped "if (i > 0) write(tiles[i - 1], buffer(i - 1));" "")
zero_add_wrong_offload(committed_before_the_last_tile "slot.lost = slot.steps > 0;" "slot.lost = false;")
zero_add_wrong_offload(stale_checksum "  to.checksum =" "  if (to.checksum == 0) to.checksum =")
zero_add_wrong_offload(wrong_tile_at_the_end
  "write(tiles.back(), buffer(count - 1));" "write(tiles.back(), buffer(count));")
file(CONFIGURE OUTPUT wrong_offloads.cpp CONTENT "${wrong_offloads}" @ONLY)
