// The strategies of all chapters behind one function, so that the ladder, the tests and the engine
// take a new chapter without being edited. CMake gives the list: ZERO_CHAPTER(simple_ddp) and so
// on.

#include <zero/train/registry.hpp>

namespace zero {

#define ZERO_CHAPTER(name) void register_##name(train::Registry& registry);
ZERO_CHAPTERS
#undef ZERO_CHAPTER

namespace train {

void ZERO_REGISTER_CHAPTERS(Registry& registry) {
#define ZERO_CHAPTER(name) register_##name(registry);
  ZERO_CHAPTERS
}

}  // namespace train
}  // namespace zero
