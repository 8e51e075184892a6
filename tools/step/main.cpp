// The program of a chapter: trains a small MLP on a few ranks of this machine and prints what each
// rank held and sent. CMake compiles it once for each chapter, with the chapter's strategy.
//   build/release/bin/00_simple_ddp --help

#include "demo.hpp"

namespace zero {
void ZERO_REGISTER_CHAPTER(tools::Registry& registry);
}

int main(int argc, char** argv) {
  return zero::step::run_demo(argc, argv, ZERO_MODE, &zero::ZERO_REGISTER_CHAPTER,
                              ZERO_NARRATED_WIDTH);
}
