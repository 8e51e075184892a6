# Writes wrong_offloads.cpp: for each mutant the library's offload with one line changed, in a namespace of its own.
set(folder "${PROJECT_SOURCE_DIR}/common/zero/optim/offload")
set(right "")
foreach(file tile_file.hpp tile_store.hpp offloaded.hpp tile_file.cpp tile_store.cpp offloaded.cpp)
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
"    file_.finish();  // this tile is here, the one before the last is written
    start(i == 0 ? kNone : i - 1, i + 1);
    update(tiles[i], buffers_[i % 2]);
"
"    update(tiles[i], buffers_[i % 2]);
    file_.finish();
    start(i == 0 ? kNone : i - 1, i + 1);
")
zero_add_wrong_offload(write_dropped "start(i == 0 ? kNone : i - 1, i + 1);" "start(kNone, i + 1);")
zero_add_wrong_offload(committed_before_the_last_tile
  "slot.pieces.clear();" "slot.steps = 0, slot.pieces.clear();")
zero_add_wrong_offload(stale_checksum "if (write != kNone) tiles_[write] =" "if (write != kNone && !has(write)) tiles_[write] =")
zero_add_wrong_offload(wrong_tile_at_the_end
  "start(tiles.size() - 1, tiles.size() + 1);" "start(tiles.size() - 2, tiles.size() + 1);")
file(CONFIGURE OUTPUT wrong_offloads.cpp CONTENT "${wrong_offloads}" @ONLY)
