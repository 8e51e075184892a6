// The chapter of a program of benchmarks. CMake compiles this once for each chapter, and
// chapter.cpp, which takes long, only once.

namespace zero {

namespace train {
class Registry;
}

void ZERO_REGISTER_CHAPTER(train::Registry& registry);
void register_chapter(train::Registry& registry);

void register_chapter(train::Registry& registry) { ZERO_REGISTER_CHAPTER(registry); }

}  // namespace zero
