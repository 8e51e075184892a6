// The chapter of a program of benchmarks. CMake compiles this once for each chapter, and
// chapter.cpp, which takes long, only once.

namespace zero {

namespace tools {
class Registry;
}

void ZERO_REGISTER_CHAPTER(tools::Registry& registry);
void register_chapter(tools::Registry& registry);

void register_chapter(tools::Registry& registry) { ZERO_REGISTER_CHAPTER(registry); }

}  // namespace zero
