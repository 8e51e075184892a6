// The strategies of all chapters behind one function, so that the ladder and the tests take a new
// chapter without being edited. CMake gives the list: ZERO_CHAPTER(simple_ddp) and so
// on.

#include <tools/ladder/registry.hpp>

namespace zero {

#define ZERO_CHAPTER(name) void register_##name(tools::Registry& registry);
ZERO_CHAPTERS
#undef ZERO_CHAPTER

namespace tools {

void ZERO_REGISTER_CHAPTERS(Registry& registry) {
#define ZERO_CHAPTER(name) register_##name(registry);
  ZERO_CHAPTERS
}

}  // namespace tools
}  // namespace zero
